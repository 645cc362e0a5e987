#include "lockstep/nn/schedules.h"

#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <limits>
#include <tuple>

#include "lockstep/base/error.h"
#include "tests/support/errors.h"

namespace lockstep {
namespace {

TEST(Schedules, ConstantStays) {
  EXPECT_EQ(ConstantSchedule{.base = 0.3}.rate(1'000'000), 0.3);
  EXPECT_THROW(ConstantSchedule{.base = -1}.rate(0), InvalidArgument);
}

TEST(Schedules, StepFallsAtEachMultiple) {
  const StepSchedule schedule{.base = 1.0, .every = 10, .factor = 0.5};
  EXPECT_EQ(schedule.rate(0), 1.0);
  EXPECT_EQ(schedule.rate(9), 1.0);
  EXPECT_EQ(schedule.rate(10), 0.5);
  EXPECT_EQ(schedule.rate(35), 0.125);
  EXPECT_THROW((StepSchedule{.every = 0}.rate(1)), InvalidArgument);
}

TEST(Schedules, CosineRisesThenFallsToItsEnd) {
  const CosineSchedule schedule{.base = 1.0, .warmup_steps = 4, .total_steps = 104, .end = 0.1};
  EXPECT_DOUBLE_EQ(schedule.rate(0), 0.25);
  EXPECT_DOUBLE_EQ(schedule.rate(3), 1.0);
  EXPECT_DOUBLE_EQ(schedule.rate(4), 1.0);
  EXPECT_DOUBLE_EQ(schedule.rate(54), 0.55);
  EXPECT_DOUBLE_EQ(schedule.rate(104), 0.1);
  EXPECT_DOUBLE_EQ(schedule.rate(5000), 0.1);
  EXPECT_THROW((CosineSchedule{.warmup_steps = 5, .total_steps = 5}.rate(0)), InvalidArgument);
}

TEST(Schedules, PlateauWaitsForItsPatience) {
  PlateauSchedule schedule{.base = 1.0, .factor = 0.1, .patience = 2, .min_rate = 0.05};
  EXPECT_EQ(schedule.observe(5.0), 1.0);
  EXPECT_EQ(schedule.observe(4.0), 1.0);
  EXPECT_EQ(schedule.observe(4.0), 1.0);
  EXPECT_EQ(schedule.observe(4.0), 1.0);
  EXPECT_EQ(schedule.observe(4.0), 0.1);
  for (int i = 0; i < 2; ++i) EXPECT_EQ(schedule.observe(9.0), 0.1);
  EXPECT_EQ(schedule.observe(9.0), 0.05);
}

TEST(Schedules, StepsBeforeTheFirstCountAsTheFirst) {
  EXPECT_EQ((CosineSchedule{.base = 1.0, .warmup_steps = 4, .total_steps = 10}.rate(-5)), 0.25);
  EXPECT_EQ((CosineSchedule{.base = 1.0, .total_steps = 10}.rate(-5)), 1.0);
  EXPECT_EQ((StepSchedule{.base = 1.0, .every = 10}.rate(-5)), 1.0);
}

TEST(Schedules, ARateThatHasShrunkToNothingStaysThere) {
  PlateauSchedule schedule{.base = 1.0, .factor = 1e-200, .patience = 0};
  for (int i = 0; i < 5; ++i) schedule.observe(1.0);
  EXPECT_EQ(schedule.state().rate, 0.0);
  for (int i = 0; i < 5; ++i) EXPECT_EQ(schedule.observe(1.0), 0.0) << i;
}

TEST(Schedules, APlateauNeverRaisesTheRate) {
  PlateauSchedule schedule{.base = 0.1, .factor = 0.5, .patience = 0, .min_rate = 0.2};
  for (int i = 0; i < 5; ++i) EXPECT_EQ(schedule.observe(1.0), 0.1) << i;
}

TEST(Schedules, AnInfiniteMetricIsImprovedUponByAFiniteOne) {
  PlateauSchedule schedule{.base = 1.0, .factor = 0.5, .patience = 1};
  schedule.observe(std::numeric_limits<double>::infinity());
  EXPECT_EQ(schedule.observe(3.0), 1.0);
  EXPECT_EQ(schedule.state().best, 3.0);
}

TEST(Schedules, DescriptionsWithoutSenseAreRefused) {
  constexpr double kInfinite = std::numeric_limits<double>::infinity();
  const double nan = std::nan("");
  const auto observe = [](PlateauSchedule schedule) { schedule.observe(1.0); };
  const std::tuple<const char*, const char*, std::function<void()>> cases[] = {
      {"got -5", "`patience` must be", [&] { observe({.patience = -5}); }},
      {"got -1", "`cooldown` must be", [&] { observe({.cooldown = -1}); }},
      {"got nan", "`threshold` must be", [&] { observe({.threshold = nan}); }},
      {"got -1", "`min_rate` must be", [&] { observe({.min_rate = -1}); }},
      {"got -1", "`base` must be", [&] { observe({.base = -1}); }},
      {"got 1", "`factor` must be", [&] { observe({.factor = 1}); }},
      {"got inf", "`base` must be", [&] { static_cast<void>(CosineSchedule{.base = kInfinite}.rate(0)); }},
      {"got -0.5", "`end` must be", [&] { static_cast<void>(CosineSchedule{.end = -0.5}.rate(0)); }},
      {"got nan", "`base` must be", [&] { static_cast<void>(StepSchedule{.base = nan}.rate(0)); }},
      {"got -1", "`factor` must be", [&] { static_cast<void>(StepSchedule{.factor = -1}.rate(0)); }},
      {"got 0", "`every` must be", [&] { static_cast<void>(StepSchedule{.every = 0}.rate(0)); }},
  };
  for (const auto& [got, rule, call] : cases) {
    const SeenError seen = error_of(call);
    EXPECT_EQ(seen.code, Code::InvalidArgument) << seen.text;
    EXPECT_EQ(seen.number, errors::kBadOption) << seen.text;
    EXPECT_TRUE(contains(seen.text, rule) && contains(seen.text, got)) << seen.text;
  }
}

TEST(Schedules, APlateauThatLoadsAStateGoesOnWhereItWas) {
  const PlateauSchedule description{.base = 1.0, .factor = 0.5, .patience = 1, .cooldown = 2, .larger_is_better = true};
  PlateauSchedule whole = description;
  PlateauSchedule resumed = description;
  for (int i = 0; i < 20; ++i) {
    if (i == 7) resumed.load_state(whole.state());
    const double metric = i % 6;
    const double expected = whole.observe(metric);
    if (i >= 7) {
      EXPECT_EQ(resumed.observe(metric), expected);
    }
  }
  EXPECT_EQ(whole.state(), resumed.state());
}

}  // namespace
}  // namespace lockstep
