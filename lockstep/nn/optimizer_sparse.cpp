#include <torch/optim/adagrad.h>
#include <torch/optim/adam.h>
#include <torch/optim/adamw.h>
#include <torch/optim/rmsprop.h>
#include <torch/optim/sgd.h>

#include <typeinfo>
#include <vector>

#include "lockstep/base/text.h"
#include "lockstep/nn/optimizer_core.h"
#include "lockstep/nn/optimizer_local.h"
#include "lockstep/nn/optimizer_state.h"

// Parameters whose gradients are sparse: LibTorch's classes update them as a whole.
namespace lockstep {
namespace {

/// LibTorch finds out in the middle of an update. Classes that are not its own may do better.
const char* why_not_sparse(const torch::optim::Optimizer& optimizer, const torch::optim::OptimizerOptions& options) {
  const std::type_info& type = typeid(optimizer);
  if (type == typeid(torch::optim::Adam)) return "Adam";
  if (type == typeid(torch::optim::AdamW)) return "AdamW";
  if (type == typeid(torch::optim::RMSprop)) return "RMSprop";
  if (type == typeid(torch::optim::SGD) && static_cast<const torch::optim::SGDOptions&>(options).weight_decay() != 0)
    return "SGD with weight_decay";
  if (type == typeid(torch::optim::Adagrad) &&
      static_cast<const torch::optim::AdagradOptions&>(options).weight_decay() != 0)
    return "Adagrad with weight_decay";
  return nullptr;
}

}  // namespace

void OptimizerCore::require_takes_sparse(std::size_t parameter, const torch::optim::Optimizer& optimizer) const {
  const char* const who = why_not_sparse(optimizer, options_of(static_cast<int>(parameter)));
  if (who == nullptr) return;
  throw InvalidArgument(
      errors::kOptimizer,
      {.what = str(who, " cannot take the sparse gradient of '", module_->parameters()[parameter].name, "'"),
       .seen = "the weights have not been changed",
       .help = "give such parameters to SGD or Adagrad without weight_decay, or build the layer "
               "with sparse(false)"});
}

void OptimizerCore::deal_out_whole(int parameter) {
  const auto index = static_cast<std::size_t>(parameter);
  if (group_of_[index] < 0) return;
  if (whole_[index]) {
    for (const auto& local : locals_) local->owns_sparse = true;
    return;
  }
  const ParameterState state = detail::gather_state(*this, parameter);  // some classes have one before the first step
  const auto group_index = static_cast<std::size_t>(group_of_[index]);
  for (std::size_t r = 0; r < locals_.size(); ++r) {
    Local& other = *locals_[r];
    auto& group = other.inner->param_groups()[group_index].params();
    for (std::size_t s = 0; s < shards_[r].size();) {
      if (shards_[r][s].parameter != parameter) {
        ++s;
        continue;
      }
      const at::Tensor segment = other.segments[s];
      other.inner->state().erase(segment.unsafeGetTensorImpl());
      std::erase_if(group, [&](const at::Tensor& tensor) { return tensor.is_same(segment); });
      shards_[r].erase(shards_[r].begin() + static_cast<std::ptrdiff_t>(s));
      other.segments.erase(other.segments.begin() + static_cast<std::ptrdiff_t>(s));
      other.reduced.pop_back();
      other.fused.pop_back();
    }
  }
  whole_[index] = true;
  const std::size_t owner = index % locals_.size();
  Local& taker = *locals_[owner];
  const at::Tensor& leaf = module_->parameters()[index].leaves[owner];
  taker.segments.push_back(leaf.data());
  taker.reduced.emplace_back();
  taker.fused.push_back(false);
  taker.owns_sparse = true;
  shards_[owner].push_back({parameter, 0, leaf.numel()});
  taker.inner->param_groups()[group_index].params().push_back(taker.segments.back());
  if (!state.empty()) taker.inner->state()[taker.segments.back().unsafeGetTensorImpl()] = state_access_.write(state);
}

void OptimizerCore::unfold_sparse_states(Local& local) {
  if (!state_access_.known) return;  // such a class has to see to it itself
  const auto& shard = shards_[static_cast<std::size_t>(local.replica)];
  for (std::size_t s = 0; s < shard.size(); ++s) {
    const bool is_dense = local.fused[s] || (local.reduced[s].defined() && !local.reduced[s].is_sparse());
    const auto found =
        is_dense ? local.inner->state().find(local.segments[s].unsafeGetTensorImpl()) : local.inner->state().end();
    if (found == local.inner->state().end()) continue;
    ParameterState state = state_access_.read(*found->second);
    bool has_sparse = false;
    for (auto& [key, value] : state) {
      if (value.layout() == at::kStrided) continue;
      value = value.to_dense();
      has_sparse = true;
    }
    if (has_sparse) found->second = state_access_.write(state);
  }
}

}  // namespace lockstep
