#include "lockstep/nn/schedules.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <fstream>
#include <functional>
#include <limits>
#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <tuple>
#include <vector>

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

using Rate = std::function<double(std::int64_t)>;

/// The schedule of a golden row.
Rate rate_of(const nlohmann::json& row) {
  const nlohmann::json& o = row["options"];
  const auto exponential = [&] {
    return ExponentialSchedule{.base = o.at("base"), .every = o.at("every"), .factor = o.at("factor")};
  };
  const std::map<std::string, std::function<Rate()>> makers = {
      {"step",
       [&]() -> Rate {
         const StepSchedule it{.base = o.at("base"), .every = o.at("every"), .factor = o.at("factor")};
         return [it](std::int64_t step) { return it.rate(step); };
       }},
      {"exponential", [&]() -> Rate { return [it = exponential()](std::int64_t step) { return it.rate(step); }; }},
      {"warmup_exponential",
       [&]() -> Rate {
         return [it = with_warmup(o.at("steps").get<std::int64_t>(), exponential())](std::int64_t step) {
           return it.rate(step);
         };
       }},
      {"polynomial",
       [&]() -> Rate {
         const PolynomialSchedule it{
             .base = o.at("base"), .total_steps = o.at("total_steps"), .end = o.at("end"), .power = o.at("power")};
         return [it](std::int64_t step) { return it.rate(step); };
       }},
      {"piecewise",
       [&]() -> Rate {
         const PiecewiseSchedule it{.boundaries = o.at("boundaries"), .rates = o.at("rates")};
         return [it](std::int64_t step) { return it.rate(step); };
       }},
      {"one_cycle",
       [&]() -> Rate {
         const OneCycleSchedule it{.peak = o.at("peak"),
                                   .total_steps = o.at("total_steps"),
                                   .rise = o.at("rise"),
                                   .start_divisor = o.at("start_divisor"),
                                   .end_divisor = o.at("end_divisor")};
         return [it](std::int64_t step) { return it.rate(step); };
       }},
      {"cosine_restarts", [&]() -> Rate {
         const CosineRestartsSchedule it{.base = o.at("base"),
                                         .first_steps = o.at("first_steps"),
                                         .length_factor = o.at("length_factor"),
                                         .rate_factor = o.at("rate_factor"),
                                         .end = o.at("end")};
         return [it](std::int64_t step) { return it.rate(step); };
       }}};
  return makers.at(row["schedule"])();
}

TEST(Schedules, HaveTheRatesOfPyTorchAndKeras) {
  const auto rows = nlohmann::json::parse(std::ifstream(LOCKSTEP_TEST_DATA_DIR "/schedules/schedules.json"));
  EXPECT_EQ(rows.size(), 14u);
  for (const nlohmann::json& row : rows) {
    const Rate rate = rate_of(row);
    const auto expected = row["rates"].get<std::vector<double>>();
    ASSERT_EQ(expected.size(), 60u);
    // Keras computes in float32.
    const double tolerance = row["of"].get<std::string>().ends_with("LR") ? 1e-12 : 1e-6;
    for (std::size_t step = 0; step < expected.size(); ++step)
      EXPECT_NEAR(rate(static_cast<std::int64_t>(step)), expected[step], tolerance)
          << row["of"] << " " << row["options"] << ", step " << step;
  }
}

TEST(Schedules, StayWhereTheyEnd) {
  EXPECT_EQ((PolynomialSchedule{.base = 1, .total_steps = 10, .end = 0.25}.rate(1'000'000)), 0.25);
  EXPECT_EQ((PiecewiseSchedule{.boundaries = {3}, .rates = {1, 0.5}}.rate(1'000'000'000'000)), 0.5);
  EXPECT_DOUBLE_EQ((OneCycleSchedule{.peak = 1, .total_steps = 10, .start_divisor = 10, .end_divisor = 2}.rate(500)),
                   0.05);
  // The last rates of a long period, and the first of the next one.
  const CosineRestartsSchedule restarts{.base = 1, .first_steps = 100, .length_factor = 1};
  EXPECT_EQ(restarts.rate(4'000'000'000'000), 1);
  EXPECT_NEAR(restarts.rate(3'999'999'999'999), 0, 1e-3);
}

TEST(Schedules, OneCycleMayHaveNoRise) {
  const OneCycleSchedule falling{.peak = 1, .total_steps = 5, .rise = 0, .start_divisor = 2, .end_divisor = 5};
  EXPECT_EQ(falling.rate(0), 1);
  EXPECT_DOUBLE_EQ(falling.rate(4), 0.1);
  const OneCycleSchedule rising{.peak = 1, .total_steps = 5, .rise = 1, .start_divisor = 2};
  EXPECT_DOUBLE_EQ(rising.rate(0), 0.5);
  EXPECT_DOUBLE_EQ(rising.rate(2), 0.75);
}

TEST(Schedules, AWarmUpComesBeforeAnySchedule) {
  const CosineSchedule cosine{.base = 0.3, .warmup_steps = 7, .total_steps = 50, .end = 0.01};
  const auto same = with_warmup(7, CosineSchedule{.base = 0.3, .total_steps = 43, .end = 0.01});
  const auto none = with_warmup(0, ConstantSchedule{.base = 0.3});
  const auto of_function = with_warmup(2, [](std::int64_t step) { return 1.0 / static_cast<double>(step + 1); });
  for (std::int64_t step = -1; step < 60; ++step) {
    EXPECT_EQ(same.rate(step), cosine.rate(step)) << step;
    EXPECT_EQ(none.rate(step), 0.3) << step;
  }
  EXPECT_EQ(of_function.rate(0), 0.5);
  EXPECT_EQ(of_function.rate(1), 1);
  EXPECT_EQ(of_function.rate(2), 1);
  EXPECT_EQ(of_function.rate(3), 0.5);
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
      {"got 0", "`every` must be", [&] { static_cast<void>(ExponentialSchedule{.every = 0}.rate(0)); }},
      {"got 0", "`power` must be", [&] { static_cast<void>(PolynomialSchedule{.power = 0}.rate(0)); }},
      {"got 0", "`total_steps` must be", [&] { static_cast<void>(PolynomialSchedule{.total_steps = 0}.rate(0)); }},
      {"got 1 rates and 1", "`rates` must be",
       [&] { static_cast<void>(PiecewiseSchedule{.boundaries = {5}}.rate(0)); }},
      {"rising", "`boundaries` must be",
       [&] {
         static_cast<void>(PiecewiseSchedule{.boundaries = {5, 5}, .rates = {1, 1, 1}}.rate(0));
       }},
      {"got 1.5", "`rise` must be", [&] { static_cast<void>(OneCycleSchedule{.rise = 1.5}.rate(0)); }},
      {"got 1", "`total_steps` must be", [&] { static_cast<void>(OneCycleSchedule{.total_steps = 1}.rate(0)); }},
      {"got 0", "`end_divisor` must be", [&] { static_cast<void>(OneCycleSchedule{.end_divisor = 0}.rate(0)); }},
      {"got 0.5", "`length_factor` must be",
       [&] { static_cast<void>(CosineRestartsSchedule{.length_factor = 0.5}.rate(0)); }},
      {"got 0", "`first_steps` must be", [&] { static_cast<void>(CosineRestartsSchedule{.first_steps = 0}.rate(0)); }},
      {"got -1", "the steps of a warm-up must be",
       [&] { static_cast<void>(with_warmup(-1, ConstantSchedule{}).rate(0)); }},
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
