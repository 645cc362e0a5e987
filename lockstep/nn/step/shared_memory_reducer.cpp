#include "lockstep/nn/step/shared_memory_reducer.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty_like.h>
#include <c10/util/SmallVector.h>

#include <algorithm>
#include <array>

#include "lockstep/comm/ordered_sum.h"
#include "lockstep/nn/optimizer_core.h"
#include "lockstep/nn/step/device_step.h"
#include "lockstep/strategy/gpu.h"
#include "lockstep/strategy/intra_op.h"
#include "lockstep/strategy/strategy.h"
#include "lockstep/strategy/tensor_reduction.h"
#include "lockstep/values/const_data.h"

namespace lockstep::detail {
namespace {

// Represents the gradient of a replica that has none.
alignas(64) constexpr std::array<char, kShardBlock * 8> kZeros{};

}  // namespace

SharedMemoryReducer::SharedMemoryReducer(const ModuleCore& module, const std::vector<int>& group_of,
                                         const Replicas& replicas)
    : GradientReducer(module, group_of, replicas), on_gpus_(module.strategy().replica_context(0).device().is_cuda()) {}

void SharedMemoryReducer::reduce(ReplicaPart& mine, ReduceOp op) {
  const at::NoGradGuard no_grad;
  mine.reduced = {.divisor = op == ReduceOp::Mean ? std::ssize(replicas_) : 1};
  std::vector<DeviceSum> on_device;
  for (OwnedSegment& segment : mine.owned) {
    const auto p = static_cast<std::size_t>(segment.where.parameter);
    segment.sum.reset();
    segment.parts.clear();
    if (mine.kinds[p] == GradientKind::None) continue;
    at::Tensor& own = mine.shown.gradients[p];
    if (mine.kinds[p] == GradientKind::Sparse) {
      mine.owns_sparse = true;
      // A single replica keeps LibTorch's own form, with duplicate rows.
      segment.sum = replicas_.size() == 1 ? own : sum_sparse(mine, p);
    } else {
      if (mine.plan.leaves_to_update && leave_to_update(mine, segment)) continue;
      // Autograd may give two parameters the same memory: then the sum must be stored elsewhere.
      const bool in_place = own.defined() && own.storage().use_count() == 1;
      const at::Tensor& leaf = module_.parameters()[p].leaves[static_cast<std::size_t>(mine.index)];
      segment.sum = in_place ? own : at::empty_like(leaf.data());
      if (has_device_sum(segment.sum, replicas_.size()) && !module_.copies().is_mixed) {
        on_device.push_back({.target = slice_of(segment.sum, segment.where)});
        list_parts(mine, segment.where, on_device.back().gradients);
      } else {
        sum_dense(mine, segment.where, segment.sum, op);
      }
    }
  }
  if (!on_device.empty()) sum_on_device(on_device, mine.reduced.divisor);
  if (mine.plan.finite != StepPlan::Finite::Host || are_finite(mine.owned)) return;
  for (const OwnedSegment& segment : mine.owned) {
    if (segment.sum.defined() && mine.reduced.not_finite.parameter < 0)
      mine.reduced.not_finite = find_not_finite(segment, mine.index);
  }
}

/// Pointers to each replica's gradient of the segment, in float32; null if it has none.
void SharedMemoryReducer::list_parts(ReplicaPart& mine, const Segment& segment,
                                     std::vector<const float*>& parts) const {
  parts.clear();
  const auto here = static_cast<std::size_t>(mine.index);
  const bool may_be_out_of_reach = on_gpus_ && !module_.copies().in_reach;
  for (std::size_t k = 0; k < replicas_.size(); ++k) {
    const at::Tensor& gradient = replicas_[k]->shown.gradients[static_cast<std::size_t>(segment.parameter)];
    if (gradient.defined() && may_be_out_of_reach && !module_.copies().share(here, k)) {
      mine.reduced.pulled.push_back(
          gpu::pull_elements(gradient, segment.begin, segment.end - segment.begin, device_of(mine)));
      parts.push_back(const_data<float>(mine.reduced.pulled.back()));
    } else {
      parts.push_back(gradient.defined() ? const_data<float>(gradient) + segment.begin : nullptr);
    }
  }
}

bool SharedMemoryReducer::leave_to_update(ReplicaPart& mine, OwnedSegment& segment) const {
  if (!segment.weights.is_contiguous() || segment.weights.scalar_type() != at::kFloat) return false;
  for (const auto& replica : replicas_) {
    const at::Tensor& gradient = replica->shown.gradients[static_cast<std::size_t>(segment.where.parameter)];
    // The fused update of CPUs needs them all.
    if (!gradient.defined() && !segment.weights.is_cpu()) continue;
    if (!gradient.defined() || gradient.is_cpu() != segment.weights.is_cpu() || gradient.scalar_type() != at::kFloat)
      return false;
  }
  list_parts(mine, segment.where, segment.parts);
  return true;
}

void SharedMemoryReducer::sum_dense(ReplicaPart& mine, const Segment& segment, at::Tensor& target, ReduceOp op) const {
  const auto dtype = engine_dtype(target.scalar_type());
  const auto parameter = static_cast<std::size_t>(segment.parameter);
  const at::Tensor range = slice_of(target, segment);
  const bool is_mixed = module_.copies().is_mixed;
  if (!dtype || !target.is_cpu() || is_mixed) {
    std::vector<at::Tensor> parts;
    for (std::size_t k = 0; k < replicas_.size(); ++k) {
      const at::Tensor& gradient = replicas_[k]->shown.gradients[parameter];
      const std::int64_t count = segment.end - segment.begin;
      if (gradient.defined() && is_mixed)
        parts.push_back(gpu::bring_here(slice_of(gradient, segment), device_of(mine)));
      else if (gradient.defined() && on_gpus_ && !module_.copies().share(static_cast<std::size_t>(mine.index), k))
        parts.push_back(gpu::pull_elements(gradient, segment.begin, count, device_of(mine)));
      else
        parts.push_back(gradient.defined() ? slice_of(gradient, segment) : range.new_zeros({count}));
    }
    range.copy_(ordered_reduce(op, parts));
    return;
  }
  const auto width = static_cast<std::int64_t>(size_of(*dtype));
  c10::SmallVector<const char*, 16> starts;  // null if there is no gradient
  for (std::size_t k = 0; k < replicas_.size(); ++k) {
    const at::Tensor& gradient = replicas_[k]->shown.gradients[parameter];
    starts.push_back(gradient.defined() ? static_cast<const char*>(gradient.const_data_ptr()) : nullptr);
  }
  const bool is_complete = std::find(starts.begin(), starts.end(), nullptr) == starts.end();
  auto* const output_start = static_cast<char*>(target.data_ptr());
  for_ranges(range, kElementwiseGrain, [&](std::int64_t first, std::int64_t last) {
    c10::SmallVector<const void*, 16> inputs;
    const std::int64_t stop = segment.begin + last;
    const std::int64_t stride = is_complete ? last - first : kShardBlock;  // no more zeros than needed
    for (std::int64_t begin = segment.begin + first; begin < stop; begin += stride) {
      inputs.clear();
      for (const char* start : starts) inputs.push_back(start != nullptr ? start + begin * width : kZeros.data());
      void* output = output_start + begin * width;
      ordered_sum(*dtype, inputs.data(), static_cast<int>(inputs.size()), &output, 1,
                  static_cast<std::size_t>(std::min(begin + stride, stop) - begin), mine.reduced.divisor);
    }
  });
}

at::Tensor SharedMemoryReducer::sum_sparse(const ReplicaPart& mine, std::size_t parameter) const {
  const at::Device here = device_of(mine);
  std::vector<at::Tensor> indices;
  std::vector<at::Tensor> values;
  for (std::size_t k = 0; k < replicas_.size(); ++k) {
    const at::Tensor& gradient = replicas_[k]->shown.gradients[parameter];
    if (!gradient.defined()) continue;
    indices.push_back(gpu::bring_here(gradient._indices(), here));
    values.push_back(gpu::bring_here(gradient._values(), here));
  }
  const at::Tensor& leaf = module_.parameters()[parameter].leaves[static_cast<std::size_t>(mine.index)];
  return sum_of_rows(indices, values, leaf, mine.reduced.divisor);
}

NonFiniteSum SharedMemoryReducer::find_not_finite(const OwnedSegment& segment, int owner) const {
  if (is_finite(segment.values())) return {};
  // A dense sum was written over the owner's gradient; a sparse one has separate memory.
  const int found = not_finite_here(segment, segment.sum.is_sparse() ? -1 : owner);
  return {.parameter = segment.where.parameter,
          .replica = found < 0 ? owner : found,
          .by_exclusion = found < 0 && replicas_.size() > 1};
}

}  // namespace lockstep::detail
