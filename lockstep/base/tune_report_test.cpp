#include "lockstep/base/tune_report.h"

#include <gtest/gtest.h>

#include <locale>
#include <string>

#include "lockstep/base/tune_request.h"

namespace lockstep {
namespace {

TEST(TuneRequest, IsReadAsItWasWritten) {
  const TuneRequest request{.replicas = 4, .seconds = 12.5, .report = "/tmp/a, b/1"};
  EXPECT_EQ(to_text(request), "4,12.5,/tmp/a, b/1");
  EXPECT_EQ(parse_tune_request(to_text(request)), request);
  for (const char* text : {"", "4", "4,5", "4,5,", "0,5,x", "-1,5,x", "4,0,x", "4,x,x", "4;5;x", "x"})
    EXPECT_EQ(parse_tune_request(text), std::nullopt) << text;
}

TEST(TuneReport, IsReadAsItGrows) {
  const std::string text = head_line({.replicas = 2, .threads = 8, .cores = 16, .program = "/home/me/my train"}) +
                           step_line({0.25, 64}) + step_line({0.125, 32}) + "step 0.1";
  TuneReport report;
  EXPECT_EQ(read_report("", report), 0u);
  EXPECT_EQ(report.replicas, 0);
  const std::size_t read = read_report(text, report);
  EXPECT_EQ(text.substr(read), "step 0.1");
  EXPECT_EQ(report.replicas, 2);
  EXPECT_EQ(report.threads, 8);
  EXPECT_EQ(report.cores, 16);
  EXPECT_EQ(report.program, "/home/me/my train");
  EXPECT_EQ(read_report("step 0.125 16\n", report), 14u);
  ASSERT_EQ(report.steps.size(), 3u);
  EXPECT_EQ(report.steps[1].seconds, 0.125);
  EXPECT_EQ(report.steps[2].rows, 16);
}

struct GroupedNumbers : std::numpunct<char> {
  char do_decimal_point() const override { return ','; }
  char do_thousands_sep() const override { return '.'; }
  std::string do_grouping() const override { return "\3"; }
};

TEST(TuneReport, IsTheSameInEveryLocale) {
  const std::locale before = std::locale::global(std::locale(std::locale::classic(), new GroupedNumbers));
  const TuneRequest request{.replicas = 1024, .seconds = 12.5, .report = "/tmp/1"};
  const std::string asked = to_text(request), step = step_line({0.25, 4096});
  TuneReport report;
  read_report(step, report);
  const auto parsed = parse_tune_request("1024,12.5,/tmp/1");
  std::locale::global(before);
  EXPECT_EQ(asked, "1024,12.5,/tmp/1");
  EXPECT_EQ(parsed, request);
  EXPECT_EQ(step, "step 0.25 4096\n");
  ASSERT_EQ(report.steps.size(), 1u);
  EXPECT_EQ(report.steps[0].rows, 4096);
  EXPECT_EQ(report.steps[0].seconds, 0.25);
}

std::vector<TunedStep> steps(const std::vector<double>& seconds) {
  std::vector<TunedStep> all;
  for (const double each : seconds) all.push_back({each, 64});
  return all;
}

TEST(TunedSteps, AreEnoughWhenWarmManyAndLong) {
  EXPECT_FALSE(are_enough({}, 1));
  EXPECT_FALSE(are_enough(steps({9, 9, 9, 1, 1, 1, 1}), 1));
  EXPECT_TRUE(are_enough(steps({0, 0, 0, 1, 1, 1, 1, 1}), 5));
  EXPECT_FALSE(are_enough(steps({9, 9, 9, 1, 1, 1, 1, 1}), 6));
}

TEST(TunedSteps, MedianLeavesOutTheWarmUpAndRareLongSteps) {
  EXPECT_EQ(median_step(steps({9, 8, 7, 1, 2, 100, 2, 2})).seconds, 2);
  EXPECT_EQ(median_step(steps({9, 8, 7, 1, 2})).seconds, 1.5);
  EXPECT_EQ(median_step(steps({9, 3, 4})).seconds, 3.5);
  EXPECT_EQ(median_step(steps({9})).seconds, 9);
  EXPECT_EQ(median_step(steps({9})).rows, 64);
  EXPECT_EQ(median_step({}).seconds, 0);
}

}  // namespace
}  // namespace lockstep
