#pragma once

#include <cstdint>
#include <utility>
#include <vector>

#include "lockstep/base/export.h"

// Learning rates over time. A schedule is a plain description, validated when a rate is requested: InvalidArgument if
// it makes no sense. Negative steps count as step 0.
//
//     const CosineSchedule schedule{.base = 0.1, .warmup_steps = 500, .total_steps = 20'000};
//     optimizer.set_learning_rate(schedule.rate(optimizer.steps()));   // outside of run, before each step
namespace lockstep {

/// The same rate at every step.
struct LOCKSTEP_EXPORT ConstantSchedule {
  double base = 0.1;  ///< the rate

  /// The rate of a step.
  double rate(std::int64_t step) const;
};

/// Multiplied by `factor` every `every` steps.
struct LOCKSTEP_EXPORT StepSchedule {
  double base = 0.1;  ///< the rate at first
  std::int64_t every = 1000;
  double factor = 0.1;

  /// The rate of a step.
  double rate(std::int64_t step) const;
};

/// Rises linearly for `warmup_steps`, then falls along half a cosine to `end` at `total_steps` and stays there.
struct LOCKSTEP_EXPORT CosineSchedule {
  double base = 0.1;  ///< the highest rate
  std::int64_t warmup_steps = 0;
  std::int64_t total_steps = 10'000;  ///< where the cosine ends
  double end = 0.0;

  /// The rate of a step.
  double rate(std::int64_t step) const;
};

/// Multiplied by `factor` over every `every` steps, a little at each step.
struct LOCKSTEP_EXPORT ExponentialSchedule {
  double base = 0.1;  ///< the rate at first
  std::int64_t every = 1000;
  double factor = 0.1;

  /// The rate of a step.
  double rate(std::int64_t step) const;
};

/// Falls to `end` at `total_steps` and stays there: linearly, or with a power of the remaining fraction.
struct LOCKSTEP_EXPORT PolynomialSchedule {
  double base = 0.1;                  ///< the rate at first
  std::int64_t total_steps = 10'000;  ///< where the fall ends
  double end = 0.0;
  double power = 1.0;  ///< 1: a straight line

  /// The rate of a step.
  double rate(std::int64_t step) const;
};

/// `rates[0]` at first, and `rates[k + 1]` from step `boundaries[k]` on.
struct LOCKSTEP_EXPORT PiecewiseSchedule {
  std::vector<std::int64_t> boundaries = {};  ///< in rising order
  std::vector<double> rates = {0.1};          ///< one more than boundaries

  /// The rate of a step.
  double rate(std::int64_t step) const;
};

/// Rises from `peak` / `start_divisor` to `peak` within the fraction `rise` of the steps, then falls to the first rate
/// divided by `end_divisor` at the last step; along half a cosine each. As PyTorch's OneCycleLR.
struct LOCKSTEP_EXPORT OneCycleSchedule {
  double peak = 0.1;                  ///< the highest rate
  std::int64_t total_steps = 10'000;  ///< length of rise and fall together
  double rise = 0.3;                  ///< share of the steps that rise
  double start_divisor = 25;          ///< the first rate is `peak` divided by this
  double end_divisor = 1e4;           ///< the last rate is the first one divided by this

  /// The rate of a step.
  double rate(std::int64_t step) const;
};

/// Falls along half a cosine to `end` and restarts. Each period is `length_factor` times as long as the previous one,
/// and begins with `rate_factor` times its rate.
struct LOCKSTEP_EXPORT CosineRestartsSchedule {
  double base = 0.1;                ///< the first rate
  std::int64_t first_steps = 1000;  ///< length of the first period
  double length_factor = 2.0;       ///< ratio of the lengths of two successive periods
  double rate_factor = 1.0;         ///< ratio of the first rates of two successive periods
  double end = 0.0;

  /// The rate of a step.
  double rate(std::int64_t step) const;
};

/// Rises linearly for `steps` to the first rate of another schedule, which follows; see `with_warmup`.
template <class S>
struct WarmupSchedule {
  std::int64_t steps = 0;  ///< length of the warm-up
  S then = {};             ///< the schedule after it

  /// The rate of a step.
  double rate(std::int64_t step) const;
};

/// The schedule, or a function of the step, preceded by a warm-up of so many steps:
///
///     .schedule = ls::with_warmup(500, ls::ExponentialSchedule{.base = 0.1, .every = 1000, .factor = 0.5})
template <class S>
WarmupSchedule<S> with_warmup(std::int64_t steps, S schedule) {
  return {steps, std::move(schedule)};
}

/// Multiplies the rate by `factor` when a metric has not improved for more than `patience` observations.
struct LOCKSTEP_EXPORT PlateauSchedule {
  double base = 0.1;  ///< the rate at first
  double factor = 0.1;
  int patience = 10;
  double threshold = 1e-4;        ///< an improvement must be larger than this, relative to the best
  int cooldown = 0;               ///< observations after a reduction that do not count
  double min_rate = 0.0;          ///< never goes below it
  bool larger_is_better = false;  ///< true for metrics such as accuracy

  /// The observations so far: the complete state.
  struct State {
    double rate = -1.0;  ///< negative: not begun. A rate that has shrunk to 0 stays there
    double best = 0.0;   ///< best metric so far
    int bad = 0;         ///< observations since then
    int cooling = 0;     ///< observations that still do not count

    bool operator==(const State&) const = default;
  };

  /// Takes an observation and returns the rate from now on, which never rises.
  double observe(double metric);
  const State& state() const { return seen; }
  void load_state(const State& state) { seen = state; }

  State seen = {};  ///< omit it in the description; use state() and load_state()
};

namespace detail {

/// `full` times the fraction of the warm-up completed at `step`. InvalidArgument for a negative number of steps.
LOCKSTEP_EXPORT double warmup_rate(double full, std::int64_t step, std::int64_t steps);

}  // namespace detail

template <class S>
double WarmupSchedule<S>::rate(std::int64_t asked) const {
  const std::int64_t step = asked < 0 ? 0 : asked;
  const auto rate_of = [this](std::int64_t at) -> double {
    if constexpr (requires { then.rate(at); })
      return then.rate(at);
    else
      return then(at);
  };
  return step < steps || steps < 0 ? detail::warmup_rate(rate_of(0), step, steps) : rate_of(step - steps);
}

}  // namespace lockstep
