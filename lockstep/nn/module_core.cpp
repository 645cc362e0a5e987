#include "lockstep/nn/module_core.h"

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/core/grad_mode.h>
#include <c10/core/InferenceMode.h>
#include <torch/nn/module.h>

#include <algorithm>
#include <exception>
#include <mutex>

#include "lockstep/base/error.h"
#include "lockstep/base/text.h"
#include "lockstep/comm/communication_options.h"
#include "lockstep/comm/local/replica_team.h"
#include "lockstep/nn/autocast.h"
#include "lockstep/nn/buffer_values.h"
#include "lockstep/nn/module_inventory.h"
#include "lockstep/nn/module_watch.h"
#include "lockstep/nn/outside_of_run.h"
#include "lockstep/nn/step/recording.h"
#include "lockstep/nn/worker_model.h"
#include "lockstep/strategy/detail/run_notes.h"
#include "lockstep/strategy/detail/strategy_access.h"
#include "lockstep/strategy/replica_name.h"
#include "lockstep/strategy/strategy.h"

namespace lockstep::detail {

Strategy& ModuleCore::strategy() const { return StrategyAccess::require_alive(alive_, "a model"); }

const std::vector<ModuleCore::Parameter>& ModuleCore::parameters() const { return inventory_->parameters; }

void ModuleCore::pin(std::size_t p) { inventory_->is_pinned[p] = true; }
bool ModuleCore::is_pinned(std::size_t p) const { return inventory_->is_pinned[p] != 0; }

const std::shared_ptr<torch::nn::Module>& ModuleCore::current() const {
  const ContextEntry* top = current_context();
  if (top != nullptr && top->replica != nullptr) return module_of_replica(*top);
  require_buffers_of_one_client();
  return replicas_[0];
}

const std::shared_ptr<torch::nn::Module>& ModuleCore::module_of_replica(const ContextEntry& replica) const {
  if (replica.strategy != strategy_) require_current_strategy(strategy(), "model");
  const auto k = static_cast<std::size_t>(replica.replica->local_index());
  // torch::load gives every parameter new memory: checking one parameter notices it before this replica computes with
  // different weights than the rest.
  if (!parameters().empty() && parameters()[0].has_moved(k)) require_unchanged();
  watch_->note_use(k);
  note_model_of_step(*this, k, inventory_->alive);
  return replicas_[k];
}

void ModuleCore::expect_forward() const {
  const ContextEntry* top = current_context();
  if (replicas_.size() > 1 && (top == nullptr || top->replica == nullptr)) watch_->note_use_outside();
}

ModuleCore::NamedTensors ModuleCore::named_parameters() const {
  const ContextEntry* top = current_context();
  const bool is_inside = top != nullptr && top->replica != nullptr;
  return (is_inside ? module_of_replica(*top) : replicas_[0])->named_parameters();
}
ModuleCore::NamedTensors ModuleCore::parameters_of(std::size_t k) const { return replicas_[k]->named_parameters(); }
ModuleCore::NamedTensors ModuleCore::buffers_of(std::size_t k) const { return replicas_[k]->named_buffers(); }

void ModuleCore::update(FunctionRef<void(torch::nn::Module&)> change) {
  const ContextEntry* top = current_context();
  const bool is_inside = top != nullptr && top->replica != nullptr;
  if (is_inside && top->strategy != strategy_) require_current_strategy(strategy(), "update of a model");
  if (!is_inside) {
    require_no_run_elsewhere(strategy(), "update of a model");
    require_buffers_of_one_client();
  }
  local::Seat* seat = is_inside ? top->replica->seat() : nullptr;
  const auto act = [&] {
    for (int k = 0; seat != nullptr && k < seat->size(); ++k) {
      if (seat->payload_of(k) == this) continue;
      throw FailedPrecondition(
          errors::kDifferentCollective,
          {.what = "replicas called update of different models",
           .seen = lockstep::str(replica_name(0), " and ", replica_name(static_cast<std::size_t>(k))),
           .help = "update the same models in the same order on every replica"});
    }
    change_once(change);
    watch_->expect_other_weights();
    // The buffers used to compute the change may differ between workers.
    if (is_inside && is_client_of_several_workers(*strategy_)) require_same_weights(*this);
  };
  const auto here = static_cast<std::size_t>(is_inside ? top->replica->local_index() : 0);
  if (is_inside) {
    for (const auto& watcher : watchers_here()) watcher->require_untouched(here);
  }
  std::exception_ptr error;
  try {
    if (seat == nullptr) {
      act();
    } else {
      // Nothing may have changed if a replica is late, which is certain only after a meeting.
      const Deadline deadline = deadline_of(strategy_->communication());
      if (!deadline.is_never())
        seat->exchange(
            "update of a model", this, [] {}, deadline);
      seat->lead("update of a model", this, act);
    }
  } catch (...) {
    error = std::current_exception();  // some weights may have changed anyway
  }
  forget_cast_weights();
  for (std::size_t k = 0; k < replicas_.size(); ++k) {
    if (is_inside && k != here) continue;
    for (const auto& parameter : parameters()) parameter.leaves[k].unsafeGetTensorImpl()->bump_version();
  }
  if (is_inside) {
    for (const auto& watcher : watchers_here()) watcher->remember(here);
  }
  if (error) std::rethrow_exception(error);
  if (is_inside) return;
  set_torn(false);  // setting all weights is the way out of that state
  note_equal_buffers();
}

void ModuleCore::change_once(FunctionRef<void(torch::nn::Module&)> change) {
  const c10::InferenceMode mode(is_inference());
  const at::NoGradGuard no_grad;
  const auto first = buffers_of(0);
  // Versions are not enough: batch normalization and writes through data() do not count them.
  std::vector<at::Tensor> before;
  for (const auto& item : first) before.push_back(item.value().defined() ? item.value().clone() : at::Tensor());
  try {
    change(*replicas_[0]);
  } catch (...) {
    spread_all_weights();  // some may have changed anyway
    throw;
  }
  spread_all_weights();
  for (std::size_t k = 1; k < replicas_.size(); ++k) {
    const auto mine = buffers_of(k);
    for (std::size_t i = 0; i < first.size(); ++i) {
      const at::Tensor& changed = first[i].value();
      if (!changed.defined() || holds_same(before[i], changed)) continue;
      const at::Tensor* const buffer = mine.find(first[i].key());
      if (buffer != nullptr && buffer->defined()) set_buffer(*buffer, changed);
    }
  }
}

bool ModuleCore::is_inference() const {
  return !parameters().empty() && inventory_->parameters.front().leaves.front().is_inference();
}

void ModuleCore::zero_grad(bool set_to_none) {
  const ContextEntry* top = current_context();
  const bool is_inside = top != nullptr && top->replica != nullptr;
  if (is_inside) current();
  for (std::size_t k = 0; k < replicas_.size(); ++k) {
    if (is_inside && static_cast<int>(k) != top->replica->local_index()) continue;
    replicas_[k]->zero_grad(set_to_none);
  }
}

void ModuleCore::train(bool on) {
  require_outside_of_run("train or eval of a model");
  for (auto& module : replicas_) module->train(on);
}

void ModuleCore::to(at::ScalarType dtype) {
  require_outside_of_run("to of a model");
  if (std::ranges::find(inventory_->is_pinned, true) != inventory_->is_pinned.end()) {
    throw FailedPrecondition(errors::kWrongModule, {.what = "the parameters of this model belong to an optimizer",
                                                    .where = "to",
                                                    .help = "convert the model before make_optimizer"});
  }
  const bool are_equal = has_equal_buffers();
  for (auto& module : replicas_) module->to(dtype);
  share_memory();
  watch_->expect_other_weights();
  if (are_equal) note_equal_buffers();
}

void ModuleCore::apply(const std::function<void(torch::nn::Module&)>& f) {
  require_outside_of_run("apply of a model");
  const bool are_equal = has_equal_buffers();
  watch_->expect_other_weights();
  // Parameters are shared: changes by f count once, as on replica 0, including random numbers. The other replicas'
  // modules are visited for their own state.
  at::Generator generator = at::detail::getDefaultCPUGenerator();
  const auto state_of = [&] {
    const std::lock_guard lock(generator.mutex());
    return generator.get_state();
  };
  const auto set_state = [&](const at::Tensor& state) {
    const std::lock_guard lock(generator.mutex());
    generator.set_state(state);
  };
  const at::Tensor before = state_of();
  replicas_[0]->apply(f);
  if (are_equal) note_equal_buffers();
  if (replicas_.size() == 1) return;
  const at::Tensor after = state_of();
  std::vector<at::Tensor> values;
  for (const Parameter& parameter : parameters()) values.push_back(parameter.leaves[0].detach().clone());
  for (std::size_t k = 1; k < replicas_.size(); ++k) {
    set_state(before);
    replicas_[k]->apply(f);
  }
  set_state(after);
  const at::NoGradGuard no_grad;
  for (std::size_t p = 0; p < inventory_->parameters.size(); ++p)
    inventory_->parameters[p].leaves[0].data().copy_(values[p]);
  spread_all_weights();
}

}  // namespace lockstep::detail
