#include "lockstep/nn/schedules.h"

#include <algorithm>
#include <cmath>
#include <numbers>
#include <string>

#include "lockstep/base/error.h"
#include "lockstep/base/text.h"

namespace lockstep {
namespace {

void require(bool holds, const char* what, const std::string& seen) {
  if (holds) return;
  throw InvalidArgument(
      errors::kBadOption,
      {.what = what, .where = "learning-rate schedule", .seen = seen, .help = "correct the schedule's description"});
}

bool is_rate(double value) { return std::isfinite(value) && value >= 0; }

void require_rate(double value, const char* name) {
  require(is_rate(value), str("`", name, "` must be a finite number, and not negative").c_str(),
          str(name, " = ", value));
}

}  // namespace

double ConstantSchedule::rate(std::int64_t) const {
  require_rate(base, "base");
  return base;
}

double StepSchedule::rate(std::int64_t step) const {
  require_rate(base, "base");
  require_rate(factor, "factor");
  require(every > 0, "`every` must be positive", str("every = ", every));
  return base * std::pow(factor, static_cast<double>(std::max<std::int64_t>(step, 0) / every));
}

double CosineSchedule::rate(std::int64_t asked) const {
  require_rate(base, "base");
  require_rate(end, "end");
  require(warmup_steps >= 0 && total_steps > warmup_steps,
          "`total_steps` must be larger than `warmup_steps`, and that not negative",
          str("total_steps = ", total_steps, ", warmup_steps = ", warmup_steps));
  const std::int64_t step = std::max<std::int64_t>(asked, 0);
  if (step < warmup_steps) return base * static_cast<double>(step + 1) / static_cast<double>(warmup_steps);
  const double done =
      static_cast<double>(std::min(step, total_steps) - warmup_steps) / static_cast<double>(total_steps - warmup_steps);
  return end + (base - end) * 0.5 * (1.0 + std::cos(std::numbers::pi * done));
}

double PlateauSchedule::observe(State& state, double metric) const {
  require_rate(base, "base");
  require_rate(min_rate, "min_rate");
  require_rate(threshold, "threshold");
  require(factor > 0 && factor < 1, "`factor` must lie between 0 and 1", str("factor = ", factor));
  require(patience >= 0, "`patience` must not be negative", str("patience = ", patience));
  require(cooldown >= 0, "`cooldown` must not be negative", str("cooldown = ", cooldown));
  if (!(state.rate >= 0)) {
    state = {.rate = base, .best = metric};
    return state.rate;
  }
  const double margin = std::isinf(state.best) ? 0 : threshold * std::abs(state.best);
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
    state.rate = std::min(state.rate, std::max(state.rate * factor, min_rate));
    state.cooling = cooldown;
    state.bad = 0;
  }
  return state.rate;
}

}  // namespace lockstep
