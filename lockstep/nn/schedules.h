#pragma once

#include <cstdint>

#include "lockstep/base/export.h"

// Learning rates over time. A schedule is a plain description, checked when a rate is asked for: InvalidArgument if it
// makes no sense. Steps before the first count as the first.
//
//     const CosineSchedule schedule{.base = 0.1, .warmup_steps = 500, .total_steps = 20'000};
//     optimizer.set_learning_rate(schedule.rate(optimizer.steps()));   // outside of run, before each step
namespace lockstep {

/// The same rate at every step.
struct LOCKSTEP_EXPORT ConstantSchedule {
  double base = 0.1;

  double rate(std::int64_t step) const;
};

/// Multiplied by `factor` every `every` steps.
struct LOCKSTEP_EXPORT StepSchedule {
  double base = 0.1;
  std::int64_t every = 1000;
  double factor = 0.1;

  double rate(std::int64_t step) const;
};

/// Rises in a straight line for `warmup_steps`, then falls along half a cosine to `end` at `total_steps` and stays
/// there.
struct LOCKSTEP_EXPORT CosineSchedule {
  double base = 0.1;
  std::int64_t warmup_steps = 0;
  std::int64_t total_steps = 10'000;
  double end = 0.0;

  double rate(std::int64_t step) const;
};

/// Multiplies the rate by `factor` when a metric has not improved for more than `patience` observations.
struct LOCKSTEP_EXPORT PlateauSchedule {
  double base = 0.1;
  double factor = 0.1;
  int patience = 10;
  double threshold = 1e-4;  ///< an improvement must be larger than this, relative to the best
  int cooldown = 0;         ///< observations after a reduction that do not count
  double min_rate = 0.0;
  bool larger_is_better = false;

  /// What has been seen so far: all there is to save.
  struct State {
    double rate = -1.0;  ///< negative: not begun. A rate that has shrunk to 0 stays there
    double best = 0.0;
    int bad = 0;
    int cooling = 0;

    bool operator==(const State&) const = default;
  };

  /// Takes an observation in and returns the rate from now on, which never rises.
  double observe(double metric);
  const State& state() const { return seen; }
  void load_state(const State& state) { seen = state; }

  State seen = {};  ///< leave it out of the description; use state() and load_state()
};

}  // namespace lockstep
