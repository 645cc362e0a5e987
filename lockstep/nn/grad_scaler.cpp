#include "lockstep/nn/grad_scaler.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "lockstep/base/error.h"
#include "lockstep/base/text.h"
#include "lockstep/nn/noted_losses.h"
#include "lockstep/nn/outside_of_run.h"
#include "lockstep/strategy/strategy.h"

namespace lockstep {
namespace {

void require_scale(double scale) {
  if (std::isfinite(scale) && scale > 0) return;
  throw InvalidArgument(errors::kNotFinite,
                        {.what = str("a loss scale must be finite and > 0, got ", scale),
                         .where = "GradScaler",
                         .help = "leave initial_scale at its default, or load what state() returned"});
}

}  // namespace

GradScaler::GradScaler(Strategy& strategy, GradScalerOptions options)
    : strategy_(&strategy), options_(options), states_(static_cast<std::size_t>(strategy.num_local_replicas())) {
  require_scale(options_.initial_scale);
  const auto require = [](bool holds, std::string what) {
    if (holds) return;
    throw InvalidArgument(errors::kBadOption, {.what = std::move(what),
                                               .where = "GradScaler",
                                               .help = "correct its GradScalerOptions, or leave the default"});
  };
  require(options_.growth >= 1, str("growth must be >= 1, got ", options_.growth));
  require(options_.backoff > 0 && options_.backoff < 1, str("backoff must be > 0 and < 1, got ", options_.backoff));
  require(options_.growth_interval >= 1, str("growth_interval must be >= 1, got ", options_.growth_interval));
  for (auto& own : states_) own.state.scale = options_.initial_scale;
}

GradScaler::State& GradScaler::here() {
  const detail::ContextEntry* top = detail::current_context();
  if (top != nullptr && top->replica != nullptr && top->strategy != strategy_) {
    throw InvalidArgument(errors::kMixedStrategies,
                          {.what = "this GradScaler belongs to another strategy",
                           .where = "GradScaler",
                           .help = "make scaler, model and optimizer with the same strategy"});
  }
  const auto k = static_cast<std::size_t>(std::max(0, current_component()));
  return states_.at(k).state;
}

at::Tensor GradScaler::scaled(const at::Tensor& loss) const {
  at::Tensor result = loss.mul(scale());
  detail::note_loss(result, detail::LossNote::Scaled);
  return result;
}

double GradScaler::scale() const { return const_cast<GradScaler*>(this)->here().scale; }

void GradScaler::update(bool was_finite) {
  State& state = here();
  if (!was_finite) {
    // Gradients are divided by it: that number must fit into a float, too.
    state = {.scale = std::max(state.scale * options_.backoff, double{std::numeric_limits<float>::min()})};
  } else if (++state.good_steps >= options_.growth_interval) {
    const double grown = state.scale * options_.growth;
    state = {.scale = std::isfinite(grown) ? grown : state.scale};
  }
}

void GradScaler::load_state(const State& state) {
  detail::require_outside_of_run("load_state of a GradScaler");
  require_scale(state.scale);
  for (auto& own : states_) own.state = state;
}

}  // namespace lockstep
