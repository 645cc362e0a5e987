#include "lockstep/nn/grad_scaler.h"

#include <torch/csrc/autograd/function.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "lockstep/base/error.h"
#include "lockstep/base/text.h"
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

namespace {

/// Its node in the graph, not owned. Numbered, because another may come to lie in its place.
struct ScaledLoss {
  const void* node = nullptr;
  std::uint64_t number = 0;
};
thread_local ScaledLoss last_scaled;

ScaledLoss scaled_loss(const at::Tensor& loss) {
  const auto* const node = loss.grad_fn().get();
  return {node, node == nullptr ? 0 : node->sequence_nr()};
}

}  // namespace

bool detail::is_scaled(const at::Tensor& loss) {
  const ScaledLoss given = scaled_loss(loss);
  return given.node != nullptr && given.node == last_scaled.node && given.number == last_scaled.number;
}

at::Tensor GradScaler::scaled(const at::Tensor& loss) const {
  at::Tensor result = loss.mul(scale());
  last_scaled = scaled_loss(result);
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
