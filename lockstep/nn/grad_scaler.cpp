#include "lockstep/nn/grad_scaler.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "lockstep/base/error.h"
#include "lockstep/base/text.h"
#include "lockstep/nn/loss_tags.h"
#include "lockstep/nn/outside_of_run.h"
#include "lockstep/nn/step/loss_scale.h"
#include "lockstep/strategy/detail/run_notes.h"
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
    : strategy_(&strategy), options_(options), scales_(static_cast<std::size_t>(strategy.num_local_replicas())) {
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
  for (auto& own : scales_) own = std::make_shared<detail::LossScale>(options_);
}

detail::LossScale& GradScaler::here() const {
  const detail::ContextEntry* top = detail::current_context();
  if (top != nullptr && top->replica != nullptr && top->strategy != strategy_) {
    throw InvalidArgument(errors::kMixedStrategies,
                          {.what = "this GradScaler belongs to another strategy",
                           .where = "GradScaler",
                           .help = "make scaler, model and optimizer with the same strategy"});
  }
  const auto k = static_cast<std::size_t>(std::max(0, current_component()));
  return *scales_.at(k);
}

at::Tensor GradScaler::scaled(const at::Tensor& loss) const {
  const double factor = scale();
  at::Tensor result = loss.mul(factor);
  detail::tag_loss(result, detail::LossTag::Scaled);
  if (!result.requires_grad()) return result;
  result.register_hook([factor](const at::Tensor&) {  // so that its backward leaves gradients for any optimizer
    if (auto* const used = detail::run_local<detail::ScalesOfRun>()) used->note(factor);
  });
  return result;
}

double GradScaler::scale() const { return here().read().scale; }
GradScaler::State GradScaler::state() const { return scales_[0]->read(); }

std::shared_ptr<detail::LossScale> detail::LossScale::of_replica(const GradScaler& scaler) {
  return scaler.here().shared_from_this();
}

const GradScaler::State& detail::LossScale::read() {
  fetch_scale(*this);
  return state_;
}

void detail::LossScale::write(const GradScaler::State& state) {
  fetch_scale(*this);  // discards the GPU's result
  state_ = state;
  is_sent = false;
}

void GradScaler::update(bool was_finite) {
  detail::LossScale& own = here();
  State state = own.read();
  if (!was_finite) {
    // Gradients are divided by it, so the quotient must fit into a float too.
    state = {.scale = std::max(state.scale * options_.backoff, double{std::numeric_limits<float>::min()})};
  } else if (++state.good_steps >= options_.growth_interval) {
    const double grown = state.scale * options_.growth;
    state = {.scale = std::isfinite(grown) ? grown : state.scale};
  }
  own.write(state);
}

void GradScaler::load_state(const State& state) {
  detail::require_outside_of_run("load_state of a GradScaler");
  require_scale(state.scale);
  for (auto& own : scales_) own->write(state);
}

}  // namespace lockstep
