#include "lockstep/nn/schedules.h"

#include <algorithm>
#include <cmath>
#include <numbers>

#include "lockstep/base/error.h"
#include "lockstep/base/text.h"

namespace lockstep {
namespace {

void require(bool holds, const char* what) {
  if (!holds) throw InvalidArgument(errors::kBadOption, {.what = what, .where = "learning-rate schedule"});
}

}  // namespace

double StepSchedule::rate(std::int64_t step) const {
  require(every > 0, "`every` must be positive");
  return base * std::pow(factor, static_cast<double>(std::max<std::int64_t>(step, 0) / every));
}

double CosineSchedule::rate(std::int64_t step) const {
  require(warmup_steps >= 0 && total_steps > warmup_steps, "`total_steps` must be larger than `warmup_steps`, and that not negative");
  if (step < warmup_steps) return base * static_cast<double>(step + 1) / static_cast<double>(warmup_steps);
  const double done = static_cast<double>(std::min(step, total_steps) - warmup_steps) / static_cast<double>(total_steps - warmup_steps);
  return end + (base - end) * 0.5 * (1.0 + std::cos(std::numbers::pi * done));
}

double PlateauSchedule::observe(State& state, double metric) const {
  require(factor > 0 && factor < 1, "`factor` must lie between 0 and 1");
  if (state.rate == 0.0) {
    state = {.rate = base, .best = metric};
    return state.rate;
  }
  const double margin = threshold * std::abs(state.best);
  const bool improved = larger_is_better ? metric > state.best + margin : metric < state.best - margin;
  if (improved || std::isnan(state.best)) {
    state.best = metric;
    state.bad = 0;
  } else {
    ++state.bad;
  }
  if (state.cooling > 0) {
    --state.cooling;
    state.bad = 0;
  }
  if (state.bad > patience) {
    state.rate = std::max(state.rate * factor, min_rate);
    state.cooling = cooldown;
    state.bad = 0;
  }
  return state.rate;
}

}  // namespace lockstep
