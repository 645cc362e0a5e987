// `lockstep tune` with real programs: what it chooses, what it remembers, and that nothing is written while it measures.

#include <gtest/gtest.h>

#include <map>

#include "lockstep/base/remembered_replicas.h"
#include "tests/support/launches.h"

namespace lockstep {
namespace {

Strings tune(const Strings& program, const Strings& options = {"--rounds", "1"}) {
  Strings words{"tune", "-r", "1", "-r", "3"};
  words.insert(words.end(), options.begin(), options.end());
  words.insert(words.end(), {"--", LOCKSTEP_TUNED_PROGRAM});
  words.insert(words.end(), program.begin(), program.end());
  return words;
}

/// Every file of a folder, and every folder, with what it holds.
std::map<std::string, std::string> content_of(const TemporaryFolder& folder) {
  std::map<std::string, std::string> all;
  for (const auto& entry : std::filesystem::recursive_directory_iterator(folder.path()))
    all[entry.path().string()] = entry.is_directory() ? "a folder" : file_content(entry.path().string());
  return all;
}

int run_program(const Strings& words) {
  Strings all{LOCKSTEP_TUNED_PROGRAM};
  all.insert(all.end(), words.begin(), words.end());
  return Process(all, {}).wait(seconds(60));
}

/// The line of the table for so many replicas.
std::string line_of(const std::string& table, int replicas) {
  const std::string front = std::string(7, ' ') + std::to_string(replicas);
  const auto at = table.find("\n" + front);
  return at == table.npos ? "" : table.substr(at + 1, table.find('\n', at + 1) - at - 1);
}

class Tuned : public testing::TestWithParam<const char*> {};

TEST_P(Tuned, NothingIsWrittenToAnEmptyFolder) {
  const TemporaryFolder folder;
  Launch launch(tune({GetParam(), folder.path()}));
  EXPECT_EQ(launch.wait(seconds(60)), 0) << launch.err();
  EXPECT_TRUE(contains(launch.out(), "best: 3 replicas with ")) << launch.out() << launch.err();
  EXPECT_TRUE(content_of(folder).empty()) << content_of(folder).begin()->first;
}

TEST_P(Tuned, WhatATrainingHasWrittenStaysAndIsNotResumed) {
  const TemporaryFolder folder;
  ASSERT_EQ(run_program({GetParam(), folder.path(), "6"}), 0);
  const auto before = content_of(folder);
  for (const char* name :
       {"/log.csv", "/log.json", "/events", "/checkpoints/step-000000000006/model.safetensors", "/exit"})
    EXPECT_TRUE(before.contains(folder.path().string() + name)) << name;
  Launch launch(tune({GetParam(), folder.path()}));
  EXPECT_EQ(launch.wait(seconds(60)), 0) << launch.err();
  EXPECT_TRUE(contains(launch.out(), "best: 3 replicas with ")) << launch.out() << launch.err();
  EXPECT_TRUE(content_of(folder) == before);
}
INSTANTIATE_TEST_SUITE_P(Programs, Tuned, testing::Values("loop", "fit"));

TEST(Tune, TimesWholeStepsAndCountsTheirRows) {
  const TemporaryFolder folder;
  Launch launch(tune({"loop", folder.path()}, {"--rounds", "2"}));
  EXPECT_EQ(launch.wait(seconds(60)), 0) << launch.err();
  std::istringstream line(line_of(launch.out(), 1));
  int replicas = 0, threads = 0;
  double milliseconds = 0, rows = 0, over = 0;
  ASSERT_TRUE(line >> replicas >> threads >> milliseconds >> rows >> over) << launch.out();
  EXPECT_GE(milliseconds, 24);  // the sleep of 12 rows
  EXPECT_NEAR(rows * milliseconds / 1e3, 12, 0.5);
  EXPECT_EQ(over, 1);
}

TEST(Tune, RemembersTheNumberForBestCpus) {
  const TemporaryFolder folder, cache;
  const Strings variables{"XDG_CACHE_HOME=" + cache.path().string()};
  const auto run = [&] {
    Process program({LOCKSTEP_TUNED_PROGRAM, "remembered", folder.path(), "1"}, variables);
    EXPECT_EQ(program.wait(seconds(60)), 0);
    return program.output();
  };
  EXPECT_TRUE(contains(run(), "1 replica on CPUs: none is remembered for a small net")) << run();
  Launch launch(tune({"remembered", folder.path()}, {"--rounds", "1", "--remember"}), variables);
  EXPECT_EQ(launch.wait(seconds(60)), 0) << launch.err();
  EXPECT_TRUE(contains(launch.out(), "remembered for a small net in " + cache.path().string())) << launch.out();
  EXPECT_EQ(find_replicas(file_content(cache / "lockstep/replicas"), key_here("a small net")), 3);
  const std::string text = run();
  EXPECT_TRUE(contains(text, "3 replicas on CPUs: remembered for a small net")) << text;
  EXPECT_TRUE(contains(text, "\n3 replicas\n")) << text;
}

TEST(Tune, ANumberThatFailsIsLeftOut) {
  const TemporaryFolder folder;
  Launch launch(tune({"two", folder.path()}, {"--rounds", "1", "-r", "2"}));
  EXPECT_EQ(launch.wait(seconds(60)), 0) << launch.err();
  EXPECT_TRUE(contains(line_of(launch.out(), 3), "not measured: exited with code 1")) << launch.out();
  EXPECT_TRUE(contains(launch.out(), "best: 2 replicas")) << launch.out();
}

TEST(Tune, ANumberThatFailsAfterSomeStepsIsLeftOut) {
  const TemporaryFolder folder;
  Launch launch(tune({"crash", folder.path()}, {"--rounds", "1", "-r", "2"}));
  EXPECT_EQ(launch.wait(seconds(60)), 0) << launch.err();
  EXPECT_TRUE(contains(line_of(launch.out(), 3), "not measured: exited with code 1")) << launch.out();
  EXPECT_TRUE(contains(launch.out(), "best: 2 replicas")) << launch.out();
}

TEST(Tune, AProgramWithSeveralNamesIsNotRemembered) {
  const TemporaryFolder folder, cache;
  Launch launch(tune({"names", folder.path()}, {"--rounds", "1", "--remember"}),
                {"XDG_CACHE_HOME=" + cache.path().string()});
  EXPECT_EQ(launch.wait(seconds(60)), 2) << launch.out();
  EXPECT_TRUE(contains(launch.err(), "not remembered: the program calls ls::best_cpus() with several names"))
      << launch.err();
  EXPECT_TRUE(content_of(cache).empty());
}

TEST(Tune, AProgramThatCannotBeMeasuredIsToldWhy) {
  struct Row {
    Strings words;
    std::string text;
  };
  const TemporaryFolder folder;
  for (const Row& row : std::vector<Row>{
           {tune({"gpu", folder.path()}), "lockstep tune measures replicas on CPUs"},
           {tune({"workers", folder.path()}), "lockstep tune measures a program of one process"},
           {tune({"no_step", folder.path()}), "took no training step and ended"},
           {tune({"nothing", folder.path()}), "  | this is nothing"},
           {{"tune", "-s", "2", "--", LOCKSTEP_TUNED_PROGRAM, "never", folder.path()}, "no training step within "},
           {{"tune", "--", "sh", "-c", "echo too bad; exit 7"}, "exited with code 7\n  | too bad\n"},
           {{"tune", "--", "sh", "-c", "kill -9 $$"}, "was killed by SIGKILL"}}) {
    Launch launch(row.words, {tf_config({"127.0.0.1:2222", "127.0.0.1:2223"}, 0)});  // which only one of them reads
    EXPECT_EQ(launch.wait(seconds(60)), 1) << row.text;
    EXPECT_TRUE(contains(launch.err(), "lockstep: no training step was measured with 1 replica: ")) << launch.err();
    EXPECT_TRUE(contains(launch.err(), row.text)) << launch.err();
  }
}

TEST(Tune, AScriptDoesNotContinueBehindTheProgram) {
  const TemporaryFolder folder;
  Launch launch(
      {"tune", "--rounds", "1", "-r", "3", "--", "sh", "-c",
       str(LOCKSTEP_TUNED_PROGRAM, " loop ", folder.path().string(), "; echo uploaded > ", folder / "uploaded")});
  EXPECT_EQ(launch.wait(seconds(60)), 0) << launch.err();
  EXPECT_TRUE(content_of(folder).empty());
}

TEST(Tune, CtrlCEndsItWithAllThatItHasStarted) {
  const TemporaryFolder folder;
  Launch launch({"tune", "--", "sh", "-c", str("echo $$ > ", folder / "pid", "; sleep 100")});
  for (const auto deadline = Deadline::after(seconds(20)); file_content(folder / "pid").empty() && !deadline.expired();)
    ::poll(nullptr, 0, 5);
  kill(launch.pid(), SIGINT);
  EXPECT_EQ(launch.wait(seconds(20)), 130) << launch.err();
  EXPECT_TRUE(are_gone({std::stoi(file_content(folder / "pid"))}));
}

TEST(Tune, AVariableThatCannotBeReadIsAnError) {
  const TemporaryFolder folder;
  Process program({LOCKSTEP_TUNED_PROGRAM, "loop", folder.path()}, {"LOCKSTEP_TUNE=yes"});
  EXPECT_EQ(program.wait(seconds(20)), 1);
  EXPECT_TRUE(contains(program.output(), "LOCKSTEP_TUNE cannot be read")) << program.output();
}

}  // namespace
}  // namespace lockstep
