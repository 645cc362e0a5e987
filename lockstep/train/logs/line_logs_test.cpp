#include "lockstep/train/logs/line_logs.h"

#include <gtest/gtest.h>
#include <sys/resource.h>

#include <csignal>
#include <limits>

#include "tests/support/expect_error.h"
#include "tests/support/temporary_folder.h"

namespace lockstep::train {
namespace {

constexpr double kNan = std::numeric_limits<double>::quiet_NaN();
constexpr double kInf = std::numeric_limits<double>::infinity();

TEST(CsvLog, HasARowPerEpochAndAColumnPerValue) {
  const TemporaryFolder folder;
  const std::string path = folder / "logs/deep/training.csv";
  CsvLog log(path);
  log.write(0, {{"loss", 2.5}, {"accuracy", 0.1}});
  EXPECT_EQ(file_content(path), "epoch,accuracy,loss\n0,0.1,2.5\n");
  log.write(1, {{"loss", kNan}, {"accuracy", -kInf}});
  log.write(2, {{"loss", 1e-05}, {"accuracy", 1}});
  EXPECT_EQ(file_content(path), "epoch,accuracy,loss\n0,0.1,2.5\n1,-inf,nan\n2,1.0,1e-05\n");
}

TEST(CsvLog, AddsColumnsThatComeLaterAndLeavesOutWhatIsMissing) {
  const TemporaryFolder folder;
  CsvLog log(folder / "log", {.key = "step"});
  log.write(5, {});
  EXPECT_EQ(file_content(folder / "log"), "step\n5\n");
  log.write(10, {{"loss", 1}});
  log.write(15, {{"val_loss", 2}, {"a,\"b\"", 3}});
  log.write(20, {{"loss", 4}});
  EXPECT_EQ(file_content(folder / "log"),
            "step,loss,\"a,\"\"b\"\"\",val_loss\n5,,,\n10,1.0,,\n15,,3.0,2.0\n20,4.0,,\n");
}

TEST(CsvLog, IsCutBackToTheStepThatIsResumed) {
  const std::string header = "epoch,loss,\"a,\"\"b\"\"\"\n";
  const struct {
    std::string before;
    std::int64_t resume_after;
    std::string after;  // with a row 7
  } rows[] = {
      {"", 3, "epoch,loss\n7,1.0\n"},
      {header, 3, header + "7,1.0,\n"},
      {header + "0,1.0,2.0\n1,1.0,2.0\n2,1.0,2.0\n", 1, header + "0,1.0,2.0\n1,1.0,2.0\n7,1.0,\n"},
      {header + "0,1.0,2.0\n1,1.0,2.0\n", 5, header + "0,1.0,2.0\n1,1.0,2.0\n7,1.0,\n"},
      {header + "0,1.0,2.0\n", -1, header + "7,1.0,\n"},
      {header + "0,1.0,2.0\n1,1.0", 5, header + "0,1.0,2.0\n7,1.0,\n"},  // killed while it wrote
      {header + "0,1.0,2.0\nnoise\n1,1.0,2.0\n", 5, header + "0,1.0,2.0\n7,1.0,\n"},
      {"epoch,lo", 5, "epoch,loss\n7,1.0\n"},
  };
  for (const auto& row : rows) {
    const TemporaryFolder folder;
    CsvLog log(folder.file("log", row.before), {.resume_after = row.resume_after});
    log.write(7, {{"loss", 1}});
    EXPECT_EQ(file_content(folder / "log"), row.after) << row.before;
  }
}

TEST(CsvLog, ReplacesAnOldFileUnlessItIsResumed) {
  const TemporaryFolder folder;
  CsvLog log(folder.file("log", "of something else"));
  log.write(0, {{"loss", 1}});
  EXPECT_EQ(file_content(folder / "log"), "epoch,loss\n0,1.0\n");
}

TEST(LineLogs, RefuseWhatTheyCannotContinueOrWrite) {
  const TemporaryFolder folder;
  const std::string path = folder.file("log", "step,loss\n1,2\n");
  CsvLog log(folder / "new");
  const struct {
    const char* name;
    std::function<void()> call;
    Code code;
    int number;
    std::vector<std::string> says;
  } rows[] = {
      {"CsvOfAnotherKey",
       [&] { CsvLog(path, {.resume_after = 1}); },
       Code::FailedPrecondition,
       errors::kFile,
       {"is not a log of this training: it has no 'epoch' in front", "first line: step,loss"}},
      {"CsvAsJson",
       [&] { JsonLinesLog(path, {.resume_after = 1}); },
       Code::FailedPrecondition,
       errors::kFile,
       {"is not a log of this training"}},
      {"LineEndInAName",
       [&] {
         log.write(0, {{"a\nb", 1}});
       },
       Code::InvalidArgument,
       errors::kBadOption,
       {"must not contain a line end, got \"a\\nb\""}},
      {"Folder", [&] { CsvLog(folder.path().string()); }, Code::FailedPrecondition, errors::kFile, {"cannot open"}},
      {"FileAsFolder", [&] { CsvLog(path + "/log"); }, Code::NotFound, errors::kFile, {"cannot create the folder"}},
  };
  for (const auto& row : rows) expect_error(row.call, row.code, row.number, row.says, row.name);
  EXPECT_EQ(file_content(path), "step,loss\n1,2\n");
}

TEST(LineLogs, KeepNoPartOfALineThatDoesNotFit) {
  const TemporaryFolder folder;
  CsvLog log(folder / "log");
  log.write(0, {{"loss", 1}});
  const std::string before = file_content(folder / "log");
  const auto old_handler = std::signal(SIGXFSZ, SIG_IGN);
  rlimit old_limit{};
  getrlimit(RLIMIT_FSIZE, &old_limit);
  const rlimit limit{before.size() + 3, old_limit.rlim_max};
  ASSERT_EQ(setrlimit(RLIMIT_FSIZE, &limit), 0);
  const SeenError seen = error_of([&] { log.write(1, {{"loss", 2}}); });
  setrlimit(RLIMIT_FSIZE, &old_limit);
  std::signal(SIGXFSZ, old_handler);
  EXPECT_EQ(seen.number, errors::kFile) << seen.text;
  EXPECT_EQ(file_content(folder / "log"), before);
  log.write(1, {{"loss", 2}});
  EXPECT_EQ(file_content(folder / "log"), before + "1,2.0\n");
}

TEST(JsonLinesLog, HasAnObjectPerLine) {
  const TemporaryFolder folder;
  JsonLinesLog log(folder / "log");
  log.write(0, {{"loss", 2.5}, {"a \"b\"\n", 1}});
  log.write(1, {{"loss", kNan}, {"up", kInf}, {"down", -kInf}});
  EXPECT_EQ(file_content(folder / "log"),
            "{\"epoch\":0,\"a \\\"b\\\"\\n\":1.0,\"loss\":2.5}\n"
            "{\"epoch\":1,\"down\":\"-Infinity\",\"loss\":\"NaN\",\"up\":\"Infinity\"}\n");
}

TEST(JsonLinesLog, IsCutBackToTheStepThatIsResumed) {
  const std::string two = "{\"step\":1,\"loss\":2.5}\n{\"step\":2,\"loss\":2.0}\n";
  const struct {
    std::string before, after;
  } rows[] = {{two, two},
              {two + "{\"step\":3}\n{\"step\":4}\n", two},
              {two + "{\"step\":2", two},
              {two + "[]\n{\"step\":2}\n", two},
              {"", ""}};
  for (const auto& row : rows) {
    const TemporaryFolder folder;
    JsonLinesLog log(folder.file("log", row.before), {.key = "step", .resume_after = 2});
    EXPECT_EQ(file_content(folder / "log"), row.after) << row.before;
    log.write(3, {});
    EXPECT_EQ(file_content(folder / "log"), row.after + "{\"step\":3}\n");
  }
}

}  // namespace
}  // namespace lockstep::train
