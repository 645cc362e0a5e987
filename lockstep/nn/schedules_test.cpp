#include "lockstep/nn/schedules.h"

#include <gtest/gtest.h>

#include "lockstep/base/error.h"

namespace lockstep {
namespace {

TEST(Schedules, ConstantStays) { EXPECT_EQ(ConstantSchedule{.base = 0.3}.rate(1'000'000), 0.3); }

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
