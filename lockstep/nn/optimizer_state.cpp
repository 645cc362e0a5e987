#include "lockstep/nn/optimizer_state.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/scalar_tensor.h>
#include <c10/core/InferenceMode.h>

#include <algorithm>
#include <set>

#include "lockstep/base/error.h"
#include "lockstep/base/text.h"
#include "lockstep/nn/guards/drift.h"
#include "lockstep/nn/open_window.h"
#include "lockstep/nn/optimizer_core.h"
#include "lockstep/nn/outside_of_run.h"
#include "lockstep/nn/step/collect.h"
#include "lockstep/nn/step/device_step.h"
#include "lockstep/nn/step/misuse.h"
#include "lockstep/nn/step/sparse_parameters.h"
#include "lockstep/nn/torch_optimizers.h"
#include "lockstep/strategy/gpu.h"

namespace lockstep::detail {
namespace {

constexpr const char* kNoParameter = "";

[[noreturn]] void throw_unfitting(const std::string& parameter, const std::string& what) {
  throw InvalidArgument(
      errors::kOptimizer,
      {.what = lockstep::str("the saved state of '", parameter, "' does not fit: ", what),
       .where = "load_state",
       .help = "load what state() of an optimizer of the same class and for the same model returned"});
}

const std::string& name_of(const OptimizerCore& core, const OwnedSegment& segment) {
  return core.module->parameters()[static_cast<std::size_t>(segment.where.parameter)].name;
}

/// Inside a window, gradients would be part of the state but are not saved.
void require_no_open_window(const OptimizerCore& core, const char* operation) {
  for (const auto& part : core.replicas) {
    const int accumulated = part->progress.accumulated;
    if (accumulated == 0 || core.has_failed_run(*part)) continue;  // minimize drops the gradients of a failed run
    throw_misuse(
        lockstep::str("gradients of ", counted(accumulated, "call"), " of minimize wait for the rest of their window"),
        lockstep::str(
            "call it between updates: after ",
            counted(std::max(1, core.settings.accumulate - accumulated), "more call"),
            " of minimize, or end the window by reduce_gradients() and step(), or by zero_grad(), inside run"),
        operation);
  }
}

/// The number of steps in a saved state; the current number if it has none.
std::int64_t saved_steps(const OptimizerCore& core, const OptimizerState& state) {
  const auto general = state.find(kNoParameter);
  if (general == state.end()) return core.replicas[0]->steps;
  const auto steps = general->second.find("steps");
  if (steps == general->second.end() || !is_count(steps->second)) {
    throw InvalidArgument(errors::kOptimizer,
                          {.what = "the saved state has no number of 'steps', a whole number >= 0",
                           .where = "load_state",
                           .help = "load what state() returned; its entry \"\" has the number of 'steps'"});
  }
  return steps->second.item<std::int64_t>();
}

/// Different classes have different keys. A class would silently drop unknown ones.
void require_own_class(const OptimizerCore& core, const std::string& parameter, const ParameterState& saved) {
  if (saved.empty()) return;
  const ParameterState understood = core.cls.read_state(*core.cls.write_state(saved));
  for (const auto& [key, value] : saved) {
    if (understood.count(key) == 0)
      throw_unfitting(parameter, lockstep::str("this class of optimizer knows no '", key, "'"));
  }
  for (const auto& [key, value] : understood) {
    if (saved.count(key) == 0) throw_unfitting(parameter, lockstep::str("'", key, "' is missing"));
  }
}

/// A count, for example, rather than the state of a parameter that is itself a number.
bool is_number(const at::Tensor& value, const at::Tensor& parameter) {
  return value.dim() == 0 && (parameter.dim() != 0 || (parameter.is_floating_point() && !value.is_floating_point()));
}

/// Both real, both complex or both integers: converting may round, but keeps the value.
bool is_of_kind(const at::Tensor& value, const at::Tensor& parameter) {
  return value.is_floating_point() == parameter.is_floating_point() && value.is_complex() == parameter.is_complex();
}

void require_fitting(const OptimizerCore& core, const OwnedSegment& segment, const OptimizerState& state) {
  const auto p = static_cast<std::size_t>(segment.where.parameter);
  const std::string& name = name_of(core, segment);
  const at::Tensor& leaf = core.module->parameters()[p].leaves[0];
  const auto saved = state.find(name);
  if (saved == state.end()) throw_unfitting(name, "it is missing");
  for (const auto& [key, value] : saved->second) {
    const auto& by_element = core.cls.kept_by_element;
    const bool is_one_number =
        is_number(value, leaf) && std::find(by_element.begin(), by_element.end(), key) == by_element.end();
    const bool fits = !core.cls.is_elementwise || is_one_number || value.sizes() == leaf.sizes();
    if (!fits) throw_unfitting(name, lockstep::str(key, " has shape ", value.sizes()));
    if (core.cls.is_elementwise && !is_one_number && !is_of_kind(value, leaf))
      throw_unfitting(name,
                      lockstep::str(key, " is ", value.scalar_type(), " for a parameter of ", leaf.scalar_type()));
  }
  require_own_class(core, name, saved->second);
  if (const char* missing = missing_state(core.options_of(p), saved->second))
    throw_unfitting(name, lockstep::str("it has no ", missing, ", which the optimizer's options ask for"));
}

/// The part of a parameter's saved state that belongs to one segment.
ParameterState cut_state(const OptimizerCore& core, const OwnedSegment& segment, const ParameterState& saved) {
  const at::Tensor& leaf = core.module->parameters()[static_cast<std::size_t>(segment.where.parameter)].leaves[0];
  ParameterState part;
  for (const auto& [key, value] : saved) {
    if (is_number(value, leaf)) {
      part[key] = value;
      continue;
    }
    if (value.sizes() != leaf.sizes()) {  // state that a custom class keeps for a whole parameter
      part[key] = state_beside(segment.weights, value).clone();
      continue;
    }
    const auto dtype = core.cls.is_elementwise ? leaf.scalar_type() : value.scalar_type();
    if (value.layout() != at::kStrided) {
      part[key] = value.to(segment.weights.device(), dtype, /*non_blocking=*/false, /*copy=*/true);
      continue;
    }
    const at::TensorOptions here = at::TensorOptions(segment.weights.device()).dtype(dtype);
    const at::Tensor ordered = at::empty_like(leaf.data(), here).copy_(value);
    const at::Tensor& weights = segment.weights;
    part[key] = weights.sizes() == ordered.sizes() ? ordered
                                                   : slice_of(ordered, segment.where).clone().reshape(weights.sizes());
  }
  return part;
}

}  // namespace

at::Tensor state_beside(const at::Tensor& weights, const at::Tensor& state) {
  const bool is_of_host = state.is_cpu() && (is_number(state, weights) || state.sizes() != weights.sizes());
  return is_of_host ? state : gpu::bring_here(state, weights.device());
}

void require_state_for_options(const OptimizerCore& core, const ReplicaPart& mine, std::size_t group) {
  if (!core.cls.knows_state) return;
  const auto& states = mine.inner->state();
  for (const OwnedSegment& segment : mine.owned) {
    const auto found = states.find(segment.weights.unsafeGetTensorImpl());
    if (segment.group != group || found == states.end()) continue;
    const char* const missing = missing_state(*core.groups[group].options, core.cls.read_state(*found->second));
    if (missing == nullptr) continue;
    throw InvalidArgument(
        errors::kBadOption,
        {.what = "an option was switched on that the optimizer's steps so far have kept nothing for",
         .where = lockstep::str("parameter group ", group),
         .seen = lockstep::str("the state of '", name_of(core, segment), "' has no ", missing),
         .help = "set amsgrad, centered or RMSprop's momentum before the first step, or make a new optimizer"});
  }
}

ParameterState gather_state(const OptimizerCore& core, int parameter) {
  const at::NoGradGuard no_grad;
  settle_all(core, settle_counts);
  ParameterState whole;
  const at::Tensor& leaf = core.module->parameters()[static_cast<std::size_t>(parameter)].leaves[0];
  for (const auto& replica : core.replicas) {
    const auto& states = replica->inner->state();
    for (const OwnedSegment& segment : replica->owned) {
      if (segment.where.parameter != parameter) continue;
      const auto found = states.find(segment.weights.unsafeGetTensorImpl());
      if (found == states.end()) continue;
      for (const auto& [key, part] : core.cls.read_state(*found->second)) {
        if (part.layout() != at::kStrided) {  // momentum of sparse gradients: kept by rows, for a whole parameter
          whole[key] = state_beside(leaf, part).coalesce().clone();
          continue;
        }
        const bool by_element = core.cls.is_elementwise || part.sizes() == leaf.sizes();
        if (!by_element || part.numel() != segment.where.end - segment.where.begin || part.dim() == 0) {
          whole[key] = state_beside(leaf, part).clone();
          continue;
        }
        auto& target = whole[key];
        if (!target.defined()) target = at::empty_like(leaf.data(), part.options().device(leaf.device())).zero_();
        if (part.sizes() == leaf.sizes()) {  // a whole parameter, whatever the layout
          target.copy_(part);
          continue;
        }
        slice_of(target, segment.where).copy_(part.reshape({-1}));
      }
    }
  }
  return whole;
}

bool has_open_window(const OptimizerCore& core) {
  core.module->strategy();  // throws if it is gone
  return std::ranges::any_of(
      core.replicas, [&](const auto& part) { return part->progress.accumulated > 0 && !core.has_failed_run(*part); });
}

void require_readable_state(const OptimizerCore& core, const char* operation) {
  require_outside_of_run(operation);
  require_no_run_elsewhere(core.module->strategy(), operation);
  core.poison.require_clean(operation);
  require_no_open_window(core, operation);
}

OptimizerState read_state(const OptimizerCore& core) {
  require_readable_state(core, "state");
  core.observers.drift->settle();
  settle_all(core, settle_counts);
  OptimizerState result;
  result[kNoParameter]["steps"] = at::scalar_tensor(core.replicas[0]->steps, at::kLong);
  for (const auto& replica : core.replicas) {
    for (const OwnedSegment& segment : replica->owned) {
      const std::string& name = name_of(core, segment);
      if (result.count(name) == 0) result[name] = gather_state(core, segment.where.parameter);
    }
  }
  return result;
}

void require_fitting_state(const OptimizerCore& core, const OptimizerState& state) {
  saved_steps(core, state);
  std::set<std::string> own{kNoParameter};
  for (const auto& replica : core.replicas) {
    for (const OwnedSegment& segment : replica->owned) own.insert(name_of(core, segment));
  }
  for (const auto& [name, value] : state) {
    if (own.count(name) == 0) throw_unfitting(name, "the optimizer has no such parameter");
  }
  for (const auto& replica : core.replicas) {
    for (const OwnedSegment& segment : replica->owned) require_fitting(core, segment, state);
  }
}

void write_state(OptimizerCore& core, const OptimizerState& state) {
  require_outside_of_run("load_state");
  require_no_run_elsewhere(core.module->strategy(), "load_state");
  core.poison.require_clean("load_state");
  require_fitting_state(core, state);
  replace_state(core, state);
}

void replace_state(OptimizerCore& core, const OptimizerState& state) {
  const c10::InferenceMode ordinary(false);  // later steps write to this state
  const at::NoGradGuard no_grad;
  const std::int64_t steps = saved_steps(core, state);
  const auto& parameters = core.module->parameters();
  for (std::size_t p = 0; p < parameters.size(); ++p) {
    const auto saved = state.find(parameters[p].name);
    if (saved != state.end() && has_sparse_part(saved->second)) deal_out_whole(core, static_cast<int>(p));
  }
  core.observers.drift->forget();
  for (const auto& replica : core.replicas) {
    auto& states = replica->inner->state();
    for (const OwnedSegment& segment : replica->owned) {
      segment.weights.mutable_grad().reset();  // left by an update that failed half-way
      states.erase(segment.weights.unsafeGetTensorImpl());
      const ParameterState& saved = state.at(name_of(core, segment));
      if (saved.empty()) continue;
      states[segment.weights.unsafeGetTensorImpl()] = core.cls.write_state(cut_state(core, segment, saved));
    }
    replica->numbers.reset();
    drop_gradients(core, *replica);
    replica->window_calls = 0;
    replica->has_checked_state = false;
    replica->steps = steps;
  }
}

}  // namespace lockstep::detail
