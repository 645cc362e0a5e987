#include <gtest/gtest.h>

#include <sstream>
#include <string>
#include <vector>

#include "lockstep/base/text.h"
#include "lockstep/train/checkpoint/folder.h"
#include "tests/support/processes.h"
#include "tests/support/temporary_folder.h"
#include "tests/support/terminal.h"

// `fit` on several workers: the same bits, one that prints, and one end for all.
namespace lockstep {
namespace {

/// The output of a worker, without its progress.
std::string results_in(const std::string& text) {
  std::istringstream in(text);
  std::string found;
  for (std::string line; std::getline(in, line);) {
    for (const char* const start : {"history", "predicted", "stopped", "steps", "weights", "saves"})
      if (line.rfind(start, 0) == 0) found += line + "\n";
  }
  return found;
}

int count(const std::string& text, const std::string& part) {
  int found = 0;
  for (std::size_t at = text.find(part); at != text.npos; at = text.find(part, at + part.size())) ++found;
  return found;
}

int lines_of_progress(const std::string& text) {
  std::istringstream in(text);
  int count = 0;
  for (std::string line; std::getline(in, line);) count += line.rfind("Epoch ", 0) == 0 ? 1 : 0;
  return count;
}

/// The results of W workers with R replicas each, which must be the same on all of them.
std::string fit(int workers, int replicas, const std::string& what = "") {
  Job job(workers, {LOCKSTEP_FIT_PROGRAM, std::to_string(replicas), what});
  std::string chiefs;
  for (int k = 0; k < workers; ++k) {
    EXPECT_EQ(job[k].wait(seconds(60)), 0) << "worker " << k << ":\n" << job[k].output();
    const std::string mine = results_in(job[k].output());
    if (k == 0) chiefs = mine;
    EXPECT_EQ(mine, chiefs) << "worker " << k;
    EXPECT_EQ(lines_of_progress(job[k].output()) > 0, k == 0) << "only the chief prints:\n" << job[k].output();
  }
  EXPECT_TRUE(contains(chiefs, "weights ")) << chiefs;
  return chiefs;
}

TEST(FitOfWorkers, HasTheBitsOfOneWorker) {
  const std::string two = fit(1, 2), four = fit(1, 4);
  EXPECT_NE(two, four) << "blind: dropout differs between replicas";
  EXPECT_EQ(fit(2, 1), two);
  EXPECT_EQ(fit(2, 2), four);
  EXPECT_EQ(fit(4, 1), four);
  EXPECT_TRUE(contains(two, "steps 18,")) << two;
}

TEST(FitOfWorkers, AveragesAndAccumulationHaveTheBitsOfOneWorker) {
  const std::string four = fit(1, 4, "ema");
  EXPECT_TRUE(contains(four, "steps 6,")) << four;  // windows of four and two batches
  EXPECT_NE(four, fit(1, 4));
  EXPECT_EQ(fit(2, 2, "ema"), four);
  EXPECT_EQ(fit(4, 1, "ema"), four);
}

Strings arguments(int replicas, const std::string& what, const TemporaryFolder& folder, bool sharded = false) {
  Strings all{LOCKSTEP_FIT_PROGRAM, std::to_string(replicas), what, folder.path().string()};
  if (sharded) all.push_back("sharded");
  return all;
}

/// A job that writes to a folder and continues from there; its results, and its CSV file.
std::string resumed_fit(int workers, int replicas, const TemporaryFolder& folder) {
  Job job(workers, arguments(replicas, "", folder));
  for (int k = 0; k < workers; ++k)
    EXPECT_EQ(job[k].wait(seconds(60)), 0) << "worker " << k << ":\n" << job[k].output();
  for (int k = 1; k < workers; ++k)
    EXPECT_EQ(results_in(job[k].output()), results_in(job[0].output())) << "worker " << k;
  return results_in(job[0].output()) + file_content(folder / "log.csv");
}

void kill_fit(int workers, int replicas, int step, const TemporaryFolder& folder, bool sharded = false) {
  Job job(workers, arguments(replicas, str("die_at ", step), folder, sharded));
  for (int k = 0; k < workers; ++k)
    EXPECT_EQ(job[k].wait(seconds(60)), k + 1 == workers ? 9 : 1) << "worker " << k << ":\n" << job[k].output();
}

TEST(FitOfWorkers, EndsWithTheSameBitsAfterKills) {
  const TemporaryFolder whole, killed, moved;
  const std::string expected = resumed_fit(1, 2, whole);
  EXPECT_TRUE(contains(expected, "steps 18,")) << expected;
  kill_fit(2, 1, 3, killed);   // before the first checkpoint
  kill_fit(2, 1, 11, killed);  // in an epoch
  kill_fit(2, 1, 17, killed);
  EXPECT_EQ(resumed_fit(2, 1, killed), expected);
  kill_fit(2, 1, 10, moved);
  EXPECT_EQ(resumed_fit(1, 2, moved), expected) << "on one worker what two have begun";
}

TEST(FitOfWorkers, ContinuesFromCheckpointsOfWhichEachWorkerWroteAPart) {
  const TemporaryFolder whole, killed;
  const std::string expected = resumed_fit(1, 2, whole);
  kill_fit(2, 1, 6, killed, /*sharded=*/true);
  kill_fit(2, 1, 11, killed, /*sharded=*/true);
  const auto checkpoints = train::list_checkpoints(killed / "checkpoints");
  ASSERT_FALSE(checkpoints.empty());
  EXPECT_EQ(train::find_damage(checkpoints.back().path), "");
  EXPECT_TRUE(contains(file_content(checkpoints.back().path + "/manifest.json"), "model.1-of-2.safetensors"));
  EXPECT_EQ(resumed_fit(1, 2, killed), expected) << "on one worker what two have begun";
}

TEST(FitOfWorkers, SigtermToOneSavesOnAllAndEndsThemWith143) {
  const TemporaryFolder whole, ended;
  const std::string expected = resumed_fit(1, 2, whole);
  for (const int step : {1, 10, 12}) {
    Job job(2, {LOCKSTEP_FIT_PROGRAM, "1", str("term_at ", step), ended.path().string()});
    for (int k = 0; k < 2; ++k) EXPECT_EQ(job[k].wait(seconds(60)), 143) << "worker " << k << ":\n" << job[k].output();
    EXPECT_TRUE(contains(job[0].output(), str("SIGTERM: saved after step ", step))) << job[0].output();
  }
  EXPECT_EQ(resumed_fit(2, 1, ended), expected);
}

TEST(FitOfWorkers, AFullDiskEndsAllWithTheCauseAndTheCheckpointsBeforeItRemain) {
  const TemporaryFolder whole, full;
  const std::string expected = resumed_fit(1, 2, whole);
  {
    Job job(2, {LOCKSTEP_FIT_PROGRAM, "1", "full", full.path().string()});
    for (int k = 0; k < 2; ++k) {
      EXPECT_EQ(job[k].wait(seconds(60)), 1) << "worker " << k << ":\n" << job[k].output();
      for (const char* const part : {"cannot write to ", "File too large", "ulimit -f"})
        EXPECT_TRUE(contains(job[k].output(), part)) << part << " of worker " << k << ":\n" << job[k].output();
    }
  }
  EXPECT_EQ(resumed_fit(2, 1, full), expected);
}

TEST(FitOfWorkers, OneWorkerStopsAll) {
  const std::string stopped = fit(2, 1, "stop");
  EXPECT_TRUE(contains(stopped, "stopped: worker 1 has seen enough\nsteps 12,")) << stopped;
}

TEST(FitOfWorkers, OneWorkerStopsAllWithinAnEpoch) {
  const std::string stopped = fit(2, 1, "stop_in_epoch");
  EXPECT_TRUE(contains(stopped, "stopped: worker 1 has seen enough\nsteps 8,")) << stopped;
}

TEST(FitOfWorkers, ARateOfOneWorkerIsThatOfAll) {
  const std::string slower = fit(2, 1, "rate");
  EXPECT_TRUE(contains(slower, str("steps 18, rate ", "0x1.0624dd2f1a9fcp-11\n"))) << slower;
}

TEST(FitOfWorkers, OneWorkerMakesAllSave) {
  const std::string saved = fit(2, 1, "save");
  EXPECT_TRUE(contains(saved, "saves after step 12\n")) << saved;
}

TEST(FitOfWorkers, EarlyStoppingIsThatOfOneWorker) {
  const std::string stopped = fit(2, 1, "early");
  EXPECT_TRUE(contains(stopped, "stopped: val_loss has not improved on ")) << stopped;
  EXPECT_TRUE(contains(stopped, "steps 12,")) << stopped;
  EXPECT_EQ(fit(1, 2, "early"), stopped);
}

TEST(FitOfWorkers, NanStopsAllAtOneStep) {
  const std::string stopped = fit(2, 1, "nan");
  EXPECT_EQ(fit(1, 2, "nan"), stopped);
  EXPECT_TRUE(contains(stopped, "stopped: loss is nan after step")) << stopped;
  EXPECT_FALSE(contains(stopped, "steps 18,")) << stopped;
}

struct Failure {
  std::string what;
  std::vector<std::string> on_chief, on_worker_1;
};
void PrintTo(const Failure& failure, std::ostream* out) { *out << failure.what; }

class FailedFit : public testing::TestWithParam<Failure> {};
TEST_P(FailedFit, EndsOnAllWorkersWithTheCause) {
  Job job(2, {LOCKSTEP_FIT_PROGRAM, "1", GetParam().what});
  for (int k = 0; k < 2; ++k) {
    EXPECT_EQ(job[k].wait(seconds(30)), 1) << "worker " << k << ":\n" << job[k].output();
    for (const std::string& part : k == 0 ? GetParam().on_chief : GetParam().on_worker_1)
      EXPECT_TRUE(contains(job[k].output(), part)) << "no '" << part << "' from worker " << k << ":\n"
                                                   << job[k].output();
  }
}
INSTANTIATE_TEST_SUITE_P(
    Fit, FailedFit,
    testing::Values(Failure{"throw",
                            {"worker 1", "callback \"of_worker_1\": worker 1 cannot continue"},
                            {"callback \"of_worker_1\" threw: worker 1 cannot continue"}},
                    Failure{"throw_in_epoch",
                            {"worker 1", "callback \"of_worker_1\": worker 1 cannot continue"},
                            {"callback \"of_worker_1\" threw: worker 1 cannot continue"}},
                    Failure{
                        "own_rate",
                        {"error[L502]: the learning rate must be the same on all workers, got 0.002 on worker 0 and "
                         "0.3 on worker 1"},
                        {"error[L502]: the learning rate must be the same on all workers, got 0.002 on worker 0 and "
                         "0.3 on worker 1"}}));

TEST(FitOnATerminal, HasNoLineThatIsTooWideWhateverItsWidth) {
  const std::string output = output_in_terminal(80, [] {
    for (const char* const name : {"TF_CONFIG", "LC_ALL", "LC_CTYPE", "LANG"}) ::unsetenv(name);
    ::setenv("TERM", "xterm", 1);
    ::execl(LOCKSTEP_FIT_PROGRAM, LOCKSTEP_FIT_PROGRAM, "2", "resize", static_cast<char*>(nullptr));
  });
  TerminalEmulator terminal(80);
  terminal.show(output.substr(0, output.find("history")));  // wide lines of the program itself follow
  EXPECT_EQ(terminal.too_wide(), Strings{});
  EXPECT_EQ(terminal.unknown(), Strings{});
  const Strings lines = terminal.lines();
  std::string all;
  for (const std::string& line : lines) all += line + "\n";
  ASSERT_GE(lines.size(), 9u) << output;
  EXPECT_EQ(lines[0], "Epoch 1/3") << all;
  EXPECT_TRUE(lines[1].starts_with("6/6 ━━━━━━━━━━━━━━━━━━━━ ")) << all;
  for (const char* const value : {"accuracy", "f_beta", "loss", "perplexity"}) {
    for (const char* const prefix : {" - ", " - val_"})
      EXPECT_EQ(count(all, str(prefix, value, ": ")), 3) << value << '\n' << all;
  }
  EXPECT_EQ(count(all, "━━ "), 3) << "no bar stays behind:\n" << all;
}

}  // namespace
}  // namespace lockstep
