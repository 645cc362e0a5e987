#include "lockstep/base/logging.h"

#include <gtest/gtest-spi.h>
#include <gtest/gtest.h>

#include <atomic>
#include <memory>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "lockstep/base/keep_memory.h"
#include "tests/support/logged_lines.h"

namespace lockstep {
namespace {

class Logging : public ::testing::Test {
 protected:
  void SetUp() override { set_log_severity(Severity::Info); }
  void TearDown() override {
    set_log_sink({});
    set_log_severity(Severity::Info);
  }

  void collect() {
    set_log_sink([this](Severity severity, std::string_view line) { lines_.emplace_back(severity, line); });
  }

  std::vector<std::pair<Severity, std::string>> lines_;
};

TEST_F(Logging, GoesToStandardErrorByDefault) {
  ::testing::internal::CaptureStderr();
  log_warning("mind the gap");
  log(Severity::Error, "lost");
  EXPECT_EQ(::testing::internal::GetCapturedStderr(), "lockstep: warning: mind the gap\nlockstep: error: lost\n");
}

TEST_F(Logging, GoesToTheSinkInstead) {
  collect();
  ::testing::internal::CaptureStderr();
  log_info("hello");
  EXPECT_EQ(::testing::internal::GetCapturedStderr(), "");
  ASSERT_EQ(lines_.size(), 1u);
  EXPECT_EQ(lines_[0], std::make_pair(Severity::Info, std::string("hello")));
}

TEST_F(Logging, DropsLinesBelowTheSeverity) {
  collect();
  log(Severity::Debug, "quiet");
  set_log_severity(Severity::Error);
  log_warning("quiet too");
  EXPECT_FALSE(is_logged(Severity::Warning));
  EXPECT_TRUE(is_logged(Severity::Error));
  set_log_severity(Severity::Silent);
  log(Severity::Error, "and this");
  log(Severity::Silent, "and this");
  EXPECT_TRUE(lines_.empty());
}

TEST_F(Logging, KeepingMemoryIsNoNewsForUsers) {
  collect();
  set_log_severity(Severity::Debug);
  keep_freed_memory();
  for (const auto& [severity, line] : lines_) EXPECT_EQ(severity, Severity::Debug) << line;
}

TEST(LoggedLinesTest, WaitingForALineThatNeverComesFailsTheTest) {
  const LoggedLines log;
  EXPECT_NONFATAL_FAILURE(log.await("never", 1, std::chrono::seconds(0)), "'never' was logged 0 times");
}

TEST(LoggedLinesTest, LinesAreCollectedInASilentProgramToo) {
  const LogSeverityScope silent(Severity::Silent);
  {
    const LoggedLines log;
    log_info("hello");
    EXPECT_EQ(log.count("hello"), 1);
  }
  EXPECT_FALSE(is_logged(Severity::Error));
}

TEST_F(Logging, SurvivesASinkThatThrows) {
  set_log_sink([](Severity, std::string_view) { throw std::runtime_error("disk full"); });
  log_info("one");
  collect();
  log_info("two");
  ASSERT_EQ(lines_.size(), 1u);
}

TEST_F(Logging, FromInsideASinkGoesToStandardError) {
  set_log_sink([](Severity, std::string_view) { log_info("inner"); });
  ::testing::internal::CaptureStderr();
  log_info("outer");
  EXPECT_EQ(::testing::internal::GetCapturedStderr(), "lockstep: info: inner\n");
}

TEST_F(Logging, CallsTheSinkOneThreadAtATime) {
  constexpr int kThreads = 4;
  constexpr int kLines = 500;
  collect();  // a vector without its own lock: the sanitizer would report a race here
  std::vector<std::thread> threads;
  for (int t = 0; t < kThreads; ++t) {
    threads.emplace_back([] {
      for (int i = 0; i < kLines; ++i) log_info("line");
    });
  }
  for (auto& thread : threads) thread.join();
  EXPECT_EQ(lines_.size(), static_cast<std::size_t>(kThreads * kLines));
}

TEST_F(Logging, ReplacingTheSinkWaitsForTheOldOne) {
  std::atomic<bool> stop = false;
  std::thread writer([&] {
    while (!stop) log_info("line");
  });
  for (int i = 0; i < 100; ++i) {
    auto count = std::make_unique<int>(0);
    set_log_sink([&calls = *count](Severity, std::string_view) { ++calls; });
    set_log_sink([](Severity, std::string_view) {});
    const int calls = *count;
    std::this_thread::yield();
    EXPECT_EQ(*count, calls) << "the old sink is no longer called";
  }  // `count` is gone here: a sink still running would write to freed memory
  stop = true;
  writer.join();
}

}  // namespace
}  // namespace lockstep
