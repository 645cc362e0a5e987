#include "lockstep/nn/schedules.h"

#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <limits>

#include "lockstep/base/error.h"

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
  const PlateauSchedule schedule{.base = 1.0, .factor = 0.1, .patience = 2, .min_rate = 0.05};
  PlateauSchedule::State state;
  EXPECT_EQ(schedule.observe(state, 5.0), 1.0);
  EXPECT_EQ(schedule.observe(state, 4.0), 1.0);
  EXPECT_EQ(schedule.observe(state, 4.0), 1.0);
  EXPECT_EQ(schedule.observe(state, 4.0), 1.0);
  EXPECT_EQ(schedule.observe(state, 4.0), 0.1);
  for (int i = 0; i < 2; ++i) EXPECT_EQ(schedule.observe(state, 9.0), 0.1);
  EXPECT_EQ(schedule.observe(state, 9.0), 0.05);
}

TEST(Schedules, StepsBeforeTheFirstCountAsTheFirst) {
  EXPECT_EQ((CosineSchedule{.base = 1.0, .warmup_steps = 4, .total_steps = 10}.rate(-5)), 0.25);
  EXPECT_EQ((CosineSchedule{.base = 1.0, .total_steps = 10}.rate(-5)), 1.0);
  EXPECT_EQ((StepSchedule{.base = 1.0, .every = 10}.rate(-5)), 1.0);
}

TEST(Schedules, ARateThatHasShrunkToNothingStaysThere) {
  const PlateauSchedule schedule{.base = 1.0, .factor = 1e-200, .patience = 0};
  PlateauSchedule::State state;
  for (int i = 0; i < 5; ++i) schedule.observe(state, 1.0);
  EXPECT_EQ(state.rate, 0.0);
  for (int i = 0; i < 5; ++i) EXPECT_EQ(schedule.observe(state, 1.0), 0.0) << i;
}

TEST(Schedules, APlateauNeverRaisesTheRate) {
  const PlateauSchedule schedule{.base = 0.1, .factor = 0.5, .patience = 0, .min_rate = 0.2};
  PlateauSchedule::State state;
  for (int i = 0; i < 5; ++i) EXPECT_EQ(schedule.observe(state, 1.0), 0.1) << i;
}

TEST(Schedules, AnInfiniteMetricIsImprovedUponByAFiniteOne) {
  const PlateauSchedule schedule{.base = 1.0, .factor = 0.5, .patience = 1};
  PlateauSchedule::State state;
  schedule.observe(state, std::numeric_limits<double>::infinity());
  EXPECT_EQ(schedule.observe(state, 3.0), 1.0);
  EXPECT_EQ(state.best, 3.0);
}

TEST(Schedules, DescriptionsWithoutSenseAreRefused) {
  constexpr double kInfinite = std::numeric_limits<double>::infinity();
  const double nan = std::nan("");
  const auto observe = [](const PlateauSchedule& schedule) {
    PlateauSchedule::State state;
    schedule.observe(state, 1.0);
  };
  const std::pair<const char*, std::function<void()>> cases[] = {
      {"patience = -5", [&] { observe({.patience = -5}); }},
      {"cooldown = -1", [&] { observe({.cooldown = -1}); }},
      {"threshold = nan", [&] { observe({.threshold = nan}); }},
      {"min_rate = -1", [&] { observe({.min_rate = -1}); }},
      {"base = -1", [&] { observe({.base = -1}); }},
      {"factor = 1", [&] { observe({.factor = 1}); }},
      {"base = inf", [&] { static_cast<void>(CosineSchedule{.base = kInfinite}.rate(0)); }},
      {"end = -0.5", [&] { static_cast<void>(CosineSchedule{.end = -0.5}.rate(0)); }},
      {"base = nan", [&] { static_cast<void>(StepSchedule{.base = nan}.rate(0)); }},
      {"factor = -1", [&] { static_cast<void>(StepSchedule{.factor = -1}.rate(0)); }},
      {"every = 0", [&] { static_cast<void>(StepSchedule{.every = 0}.rate(0)); }},
  };
  for (const auto& [text, call] : cases) {
    try {
      call();
      ADD_FAILURE() << "accepted: " << text;
    } catch (const InvalidArgument& e) {
      EXPECT_EQ(e.number(), errors::kBadOption);
      EXPECT_NE(std::string(e.what()).find(text), std::string::npos) << e.what();
    }
  }
}

TEST(Schedules, ARestoredPlateauGoesOnWhereItWas) {
  const PlateauSchedule schedule{.base = 1.0, .factor = 0.5, .patience = 1, .cooldown = 2, .larger_is_better = true};
  PlateauSchedule::State whole;
  PlateauSchedule::State resumed;
  for (int i = 0; i < 20; ++i) {
    if (i == 7) resumed = PlateauSchedule::State(whole);
    const double metric = i % 6;
    const double expected = schedule.observe(whole, metric);
    if (i >= 7) {
      EXPECT_EQ(schedule.observe(resumed, metric), expected);
    }
  }
  EXPECT_EQ(whole, resumed);
}

}  // namespace
}  // namespace lockstep
