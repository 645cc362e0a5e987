#include "lockstep/nn/step/sparse_parameters.h"

#include <algorithm>

#include "lockstep/base/error.h"
#include "lockstep/base/text.h"
#include "lockstep/comm/local/replica_team.h"
#include "lockstep/nn/optimizer_core.h"
#include "lockstep/nn/optimizer_state.h"
#include "lockstep/nn/torch_optimizers.h"
#include "lockstep/strategy/replica_context.h"

namespace lockstep::detail {

bool has_sparse_part(const ParameterState& state) {
  return std::any_of(state.begin(), state.end(), [](const auto& part) { return part.second.layout() != at::kStrided; });
}

bool has_new_sparse(const OptimizerCore& core, const ReplicaPart& mine) {
  bool is_new = false;
  for (std::size_t p = 0; p < mine.kinds.size(); ++p) {
    if (mine.kinds[p] != GradientKind::Sparse) continue;
    if (const char* const optimizer = why_not_sparse(*mine.inner, core.options_of(p))) {
      throw InvalidArgument(
          errors::kOptimizer,
          {.what = str(optimizer, " cannot take the sparse gradient of '", core.module->parameters()[p].name, "'"),
           .seen = "the weights have not been changed",
           .help = "give such parameters to SGD or Adagrad without weight_decay, or build the layer with "
                   "sparse(false)"});
    }
    is_new |= !core.is_whole[p];
  }
  return is_new;
}

void deal_out_new_sparse(OptimizerCore& core, const ReplicaPart& mine) {
  const auto act = [&] {
    for (std::size_t p = 0; p < mine.kinds.size(); ++p) {
      if (mine.kinds[p] == GradientKind::Sparse && !core.is_whole[p]) deal_out_whole(core, static_cast<int>(p));
    }
  };
  local::Seat* seat = get_replica_context().seat();
  seat ? seat->lead("sparse gradients", nullptr, act) : act();
}

void deal_out_whole(OptimizerCore& core, int parameter) {
  const auto p = static_cast<std::size_t>(parameter);
  if (core.group_of[p] < 0) return;
  if (core.is_whole[p]) {
    for (const auto& part : core.replicas) part->owns_sparse = true;
    return;
  }
  ParameterState state = gather_state(core, parameter);  // some classes have one before the first step
  const auto group = static_cast<std::size_t>(core.group_of[p]);
  for (const auto& part : core.replicas) {
    part->numbers.reset();  // it counts by segment
    std::erase_if(part->owned, [&](const OwnedSegment& segment) {
      if (segment.where.parameter != parameter) return false;
      part->inner->state().erase(segment.weights.unsafeGetTensorImpl());
      std::erase_if(part->inner->param_groups()[group].params(),
                    [&](const at::Tensor& tensor) { return tensor.is_same(segment.weights); });
      return true;
    });
  }
  core.is_whole[p] = true;
  const std::size_t owner = p % core.replicas.size();
  ReplicaPart& taker = *core.replicas[owner];
  const at::Tensor& leaf = core.module->parameters()[p].leaves[owner];
  const OwnedSegment whole{
      .where = {parameter, 0, leaf.numel()}, .group = group, .is_whole = true, .weights = leaf.data()};
  taker.owned.push_back(whole);
  taker.owns_sparse = true;
  taker.inner->param_groups()[group].params().push_back(whole.weights);
  for (auto& [key, value] : state) value = state_beside(leaf, value);
  if (!state.empty()) taker.inner->state()[whole.weights.unsafeGetTensorImpl()] = core.cls.write_state(state);
}

void reconcile_layouts(const OptimizerCore& core, ReplicaPart& mine) {
  if (!core.cls.knows_state) return;  // such a class has to handle it itself
  auto& states = mine.inner->state();
  for (OwnedSegment& segment : mine.owned) {
    if (!segment.has_gradient()) continue;
    const auto found = states.find(segment.weights.unsafeGetTensorImpl());
    if (found == states.end()) continue;
    ParameterState state = core.cls.read_state(*found->second);
    if (segment.sum.defined() && segment.sum.is_sparse()) {
      const auto& options = core.options_of(static_cast<std::size_t>(segment.where.parameter));
      if (adds_state_to_gradient(*mine.inner, options) && !has_sparse_part(state)) segment.sum = segment.sum.to_dense();
      continue;
    }
    if (!has_sparse_part(state)) continue;
    for (auto& [key, value] : state) value = value.layout() == at::kStrided ? value : value.to_dense();
    found->second = core.cls.write_state(state);
  }
}

}  // namespace lockstep::detail
