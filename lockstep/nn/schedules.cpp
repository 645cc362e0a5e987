#include "lockstep/nn/schedules.h"

#include <algorithm>
#include <cmath>
#include <functional>
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

/// Between `from` and `to`, with the fraction `done` completed.
double along_cosine(double from, double to, double done) {
  return to + (from - to) * 0.5 * (1.0 + std::cos(std::numbers::pi * done));
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
  return along_cosine(base, end, done);
}

double ExponentialSchedule::rate(std::int64_t step) const {
  require_rate(base, "base");
  require_rate(factor, "factor");
  require(every > 0, str("`every` must be > 0, got ", every));
  const auto steps = static_cast<double>(std::max<std::int64_t>(step, 0));
  return base * std::pow(factor, steps / static_cast<double>(every));
}

double PolynomialSchedule::rate(std::int64_t step) const {
  require_rate(base, "base");
  require_rate(end, "end");
  require(total_steps > 0, str("`total_steps` must be > 0, got ", total_steps));
  require(std::isfinite(power) && power > 0, str("`power` must be finite and > 0, got ", power));
  const double done = static_cast<double>(std::clamp<std::int64_t>(step, 0, total_steps));
  return end + (base - end) * std::pow(1.0 - done / static_cast<double>(total_steps), power);
}

double PiecewiseSchedule::rate(std::int64_t step) const {
  require(rates.size() == boundaries.size() + 1, str("`rates` must be one more than `boundaries`, got ", rates.size(),
                                                     " rates and ", boundaries.size(), " boundaries"));
  for (const double each : rates) require_rate(each, "rates");
  require(std::ranges::adjacent_find(boundaries, std::greater_equal()) == boundaries.end(),
          "`boundaries` must be in rising order");
  return rates[static_cast<std::size_t>(std::ranges::upper_bound(boundaries, step) - boundaries.begin())];
}

double OneCycleSchedule::rate(std::int64_t asked) const {
  require_rate(peak, "peak");
  require(total_steps > 1, str("`total_steps` must be > 1, got ", total_steps));
  require(rise >= 0 && rise <= 1, str("`rise` must be from 0 to 1, got ", rise));
  require(std::isfinite(start_divisor) && start_divisor > 0,
          str("`start_divisor` must be finite and > 0, got ", start_divisor));
  require(std::isfinite(end_divisor) && end_divisor > 0,
          str("`end_divisor` must be finite and > 0, got ", end_divisor));
  const auto step = static_cast<double>(std::clamp<std::int64_t>(asked, 0, total_steps - 1));
  const double last = static_cast<double>(total_steps - 1);
  const double top = std::max(rise * static_cast<double>(total_steps) - 1, 0.0);  // the step of the peak
  const double first = peak / start_divisor;
  if (step < top) return along_cosine(first, peak, step / top);
  return along_cosine(peak, first / end_divisor, top < last ? (step - top) / (last - top) : 1.0);
}

double CosineRestartsSchedule::rate(std::int64_t asked) const {
  require_rate(base, "base");
  require_rate(end, "end");
  require_rate(rate_factor, "rate_factor");
  require(first_steps > 0, str("`first_steps` must be > 0, got ", first_steps));
  require(std::isfinite(length_factor) && length_factor >= 1,
          str("`length_factor` must be finite and >= 1, got ", length_factor));
  auto step = static_cast<double>(std::max<std::int64_t>(asked, 0));  // within its period
  auto length = static_cast<double>(first_steps);
  double periods = 0;
  if (length_factor == 1) {
    periods = std::floor(step / length);
    step -= periods * length;
  }
  for (; step >= length; ++periods) {
    step -= length;
    length *= length_factor;
  }
  return along_cosine(end + (base - end) * std::pow(rate_factor, periods), end, step / length);
}

double detail::warmup_rate(double full, std::int64_t step, std::int64_t steps) {
  require(steps >= 0, str("the steps of a warm-up must be >= 0, got ", steps));
  return full * static_cast<double>(std::max<std::int64_t>(step, 0) + 1) / static_cast<double>(steps);
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
