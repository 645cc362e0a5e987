#include "lockstep/nn/optimizer_state.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/scalar_tensor.h>

#include <algorithm>
#include <set>

#include "lockstep/base/text.h"
#include "lockstep/nn/optimizer_core.h"
#include "lockstep/nn/outside_of_run.h"

namespace lockstep::detail {
namespace {

[[noreturn]] void throw_unfitting(const std::string& parameter, const std::string& what) {
  throw InvalidArgument(errors::kOptimizer, {.what = str("the saved state of '", parameter, "' does not fit: ", what),
                                             .where = "load_state"});
}

at::Tensor flat(const at::Tensor& tensor) { return tensor.as_strided({tensor.numel()}, {1}); }

/// States of classes have different keys. What a class does not know it would drop without a word.
void require_own_class(const OptimizerCore& core, const std::string& parameter, const ParameterState& saved) {
  if (saved.empty()) return;
  const ParameterState understood = core.state_access().read(*core.state_access().write(saved));
  for (const auto& [key, value] : saved) {
    if (understood.count(key) == 0) throw_unfitting(parameter, str("this class of optimizer knows no '", key, "'"));
  }
  for (const auto& [key, value] : understood) {
    if (saved.count(key) == 0) throw_unfitting(parameter, str("'", key, "' is missing"));
  }
}

/// A count, say, and not what is remembered of a parameter that is itself a number.
bool is_number(const at::Tensor& value, const at::Tensor& parameter) {
  return value.dim() == 0 && (parameter.dim() != 0 || (parameter.is_floating_point() && !value.is_floating_point()));
}

bool has_sparse_part(const ParameterState& saved) {
  return std::any_of(saved.begin(), saved.end(), [](const auto& part) { return part.second.layout() != at::kStrided; });
}

constexpr const char* kNoParameter = "";

/// What LibTorch's classes take for granted once a parameter has a state; null if all is there.
const char* missing_for(const torch::optim::OptimizerOptions& options, const ParameterState& state) {
  if (state.empty()) return nullptr;
  const auto lacks = [&](bool needed, const char* key) { return needed && state.count(key) == 0 ? key : nullptr; };
  if (const auto* adam = dynamic_cast<const torch::optim::AdamOptions*>(&options))
    return lacks(adam->amsgrad(), "max_exp_avg_sq");
  if (const auto* adamw = dynamic_cast<const torch::optim::AdamWOptions*>(&options))
    return lacks(adamw->amsgrad(), "max_exp_avg_sq");
  if (const auto* rmsprop = dynamic_cast<const torch::optim::RMSpropOptions*>(&options)) {
    const char* momentum = lacks(rmsprop->momentum() > 0, "momentum_buffer");
    return momentum ? momentum : lacks(rmsprop->centered(), "grad_avg");
  }
  return nullptr;
}

}  // namespace

at::Tensor number_tensor(std::int64_t value) { return at::scalar_tensor(value, at::kLong); }

std::int64_t number_of(const ParameterState& state, const char* key) {
  const auto found = state.find(key);
  if (found == state.end())
    throw InvalidArgument(errors::kOptimizer,
                          {.what = str("the saved state has no '", key, "'"), .where = "load_state"});
  if (found->second.numel() != 1)
    throw InvalidArgument(errors::kOptimizer,
                          {.what = str("'", key, "' of the saved state is not a number"), .where = "load_state"});
  return found->second.item<std::int64_t>();
}

at::Tensor tensor_of(const ParameterState& state, const char* key) {
  const auto found = state.find(key);
  return found == state.end() ? at::Tensor() : found->second;
}

ParameterState gather_state(OptimizerCore& core, int parameter) {
  const at::NoGradGuard no_grad;
  ParameterState whole;
  const at::Tensor& leaf = core.module()->parameters()[static_cast<std::size_t>(parameter)].leaves[0];
  for (std::size_t r = 0; r < core.shards().size(); ++r) {
    const auto& states = core.inner(r).state();
    for (std::size_t s = 0; s < core.shards()[r].size(); ++s) {
      const Segment& segment = core.shards()[r][s];
      if (segment.parameter != parameter) continue;
      const auto found = states.find(core.segments(r)[s].unsafeGetTensorImpl());
      if (found == states.end()) continue;
      for (const auto& [key, part] : core.state_access().read(*found->second)) {
        if (part.layout() != at::kStrided) {  // momentum of sparse gradients: kept by rows, for a whole parameter
          whole[key] = part.coalesce().clone();
          continue;
        }
        const bool by_element = core.is_elementwise() || part.sizes() == leaf.sizes();
        if (!by_element || part.numel() != segment.end - segment.begin || part.dim() == 0) {
          whole[key] = part.clone();
          continue;
        }
        auto& target = whole[key];
        if (!target.defined()) target = at::empty_like(leaf.data(), part.options()).zero_();
        if (part.sizes() == leaf.sizes()) {  // a whole parameter, whatever the layout
          target.copy_(part);
          continue;
        }
        flat(target).slice(0, segment.begin, segment.end).copy_(part.reshape({-1}));
      }
    }
  }
  return whole;
}

OptimizerState read_state(OptimizerCore& core) {
  detail::require_outside_of_run("state");
  core.require_usable("state");
  core.require_no_open_window("state");
  OptimizerState result;
  result[kNoParameter]["steps"] = number_tensor(core.steps());
  const auto& parameters = core.module()->parameters();
  for (const auto& shard : core.shards()) {
    for (const Segment& segment : shard) {
      const std::string& name = parameters[static_cast<std::size_t>(segment.parameter)].name;
      if (result.count(name) == 0) result[name] = gather_state(core, segment.parameter);
    }
  }
  return result;
}

void write_state(OptimizerCore& core, const OptimizerState& state) {
  detail::require_outside_of_run("load_state");
  core.require_usable("load_state");
  const at::NoGradGuard no_grad;
  const auto& parameters = core.module()->parameters();
  const auto general = state.find(kNoParameter);
  const std::int64_t steps = general == state.end() ? core.steps() : number_of(general->second, "steps");
  std::set<std::string> own{kNoParameter};
  for (const auto& shard : core.shards()) {
    for (const Segment& segment : shard) own.insert(parameters[static_cast<std::size_t>(segment.parameter)].name);
  }
  for (const auto& [name, value] : state) {
    if (own.count(name) == 0) throw_unfitting(name, "the optimizer has no such parameter");
  }
  for (const auto& shard : core.shards()) {  // all of it fits, or nothing is changed
    for (const Segment& segment : shard) {
      const auto& parameter = parameters[static_cast<std::size_t>(segment.parameter)];
      const auto saved = state.find(parameter.name);
      if (saved == state.end()) throw_unfitting(parameter.name, "it is missing");
      for (const auto& [key, value] : saved->second) {
        const bool fits = !core.is_elementwise() || is_number(value, parameter.leaves[0]) ||
                          value.sizes() == parameter.leaves[0].sizes();
        if (!fits) throw_unfitting(parameter.name, lockstep::str(key, " has shape ", value.sizes()));
      }
      require_own_class(core, parameter.name, saved->second);
      if (const char* missing = missing_for(core.options_of(segment.parameter), saved->second)) {
        throw_unfitting(parameter.name,
                        lockstep::str("it has no ", missing, ", which the optimizer's options ask for"));
      }
    }
  }
  for (std::size_t p = 0; p < parameters.size(); ++p) {
    const auto saved = state.find(parameters[p].name);
    if (saved != state.end() && has_sparse_part(saved->second)) core.deal_out_whole(static_cast<int>(p));
  }
  for (std::size_t r = 0; r < core.shards().size(); ++r) {
    auto& states = core.inner(r).state();
    for (std::size_t s = 0; s < core.shards()[r].size(); ++s) {
      const Segment& segment = core.shards()[r][s];
      const auto& parameter = parameters[static_cast<std::size_t>(segment.parameter)];
      const at::Tensor& target = core.segments(r)[s];
      states.erase(target.unsafeGetTensorImpl());
      const auto saved = state.find(parameter.name);
      if (saved->second.empty()) continue;
      ParameterState part;
      for (const auto& [key, value] : saved->second) {
        if (is_number(value, parameter.leaves[0])) {
          part[key] = value;
          continue;
        }
        if (value.sizes() != parameter.leaves[0].sizes()) {  // what a class of its own kind keeps for a whole parameter
          part[key] = value.clone();
          continue;
        }
        const auto dtype = core.is_elementwise() ? parameter.leaves[0].scalar_type() : value.scalar_type();
        if (value.layout() != at::kStrided) {
          part[key] = value.to(target.device(), dtype, /*non_blocking=*/false, /*copy=*/true);
          continue;
        }
        at::Tensor ordered = at::empty_like(parameter.leaves[0].data(), at::TensorOptions(dtype)).copy_(value);
        part[key] = target.sizes() == ordered.sizes()
                        ? ordered
                        : flat(ordered).slice(0, segment.begin, segment.end).clone().reshape(target.sizes());
      }
      states[target.unsafeGetTensorImpl()] = core.state_access().write(part);
    }
  }
  core.start_anew_at(steps);
}

}  // namespace lockstep::detail
