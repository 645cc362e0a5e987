#include "lockstep/nn/schedules.h"

#include <algorithm>
#include <cmath>
#include <numbers>
#include <string>

#include "lockstep/base/error.h"
#include "lockstep/base/text.h"

namespace lockstep {
namespace {

void require(bool holds, const std::string& what) {
  if (holds) return;
  throw InvalidArgument(
      errors::kBadOption,
      {.what = what, .where = "learning-rate schedule", .help = "correct the field where the schedule is described"});
}

void require_rate(double value, const char* name) {
  require(std::isfinite(value) && value >= 0, str("`", name, "` must be finite and >= 0, got ", value));
}

}  // namespace

double ConstantSchedule::rate(std::int64_t) const {
  require_rate(base, "base");
  return base;
}

double StepSchedule::rate(std::int64_t step) const {
  require_rate(base, "base");
  require_rate(factor, "factor");
  require(every > 0, str("`every` must be > 0, got ", every));
  return base * std::pow(factor, static_cast<double>(std::max<std::int64_t>(step, 0) / every));
}

double CosineSchedule::rate(std::int64_t asked) const {
  require_rate(base, "base");
  require_rate(end, "end");
  require(warmup_steps >= 0, str("`warmup_steps` must be >= 0, got ", warmup_steps));
  require(total_steps > warmup_steps,
          str("`total_steps` must be > warmup_steps, which is ", warmup_steps, ", got ", total_steps));
  const std::int64_t step = std::max<std::int64_t>(asked, 0);
  if (step < warmup_steps) return base * static_cast<double>(step + 1) / static_cast<double>(warmup_steps);
  const double done =
      static_cast<double>(std::min(step, total_steps) - warmup_steps) / static_cast<double>(total_steps - warmup_steps);
  return end + (base - end) * 0.5 * (1.0 + std::cos(std::numbers::pi * done));
}

double PlateauSchedule::observe(double metric) {
  State& state = seen;
  require_rate(base, "base");
  require_rate(min_rate, "min_rate");
  require_rate(threshold, "threshold");
  require(factor > 0 && factor < 1, str("`factor` must be > 0 and < 1, got ", factor));
  require(patience >= 0, str("`patience` must be >= 0, got ", patience));
  require(cooldown >= 0, str("`cooldown` must be >= 0, got ", cooldown));
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
