#include "lockstep/nn/step/device_step.h"

#include <ATen/ops/empty.h>
#include <c10/cuda/CUDAException.h>
#include <c10/cuda/CUDAGuard.h>

#include <algorithm>

#include "lockstep/nn/cuda/device_numbers.h"
#include "lockstep/nn/cuda/device_updater.h"
#include "lockstep/nn/cuda/norm_kernels.h"
#include "lockstep/nn/cuda/segment_kernels.h"
#include "lockstep/nn/optimizer_core.h"
#include "lockstep/nn/owner_plan.h"
#include "lockstep/strategy/gpu.h"
#include "lockstep/values/const_data.h"

namespace lockstep::detail {

bool has_device_sum(const at::Tensor& weights, std::size_t replicas) {
  return weights.is_cuda() && weights.scalar_type() == at::kFloat && weights.layout() == at::kStrided &&
         replicas <= static_cast<std::size_t>(gpu::kMostReplicas);
}

void sum_on_device(const std::vector<DeviceSum>& sums, std::int64_t divisor) {
  gpu::Segments segments;
  for (const DeviceSum& sum : sums) {
    segments.push_back({.target = sum.target.mutable_data_ptr<float>(),
                        .gradients = sum.gradients.data(),
                        .elements = sum.target.numel()});
  }
  const c10::cuda::CUDAGuard device(sums.front().target.device());
  C10_CUDA_CHECK(gpu::sum_segments(segments, static_cast<int>(sums.front().gradients.size()), divisor,
                                   current_stream(sums.front().target)));
}

void sum_squares_on_device(const at::Tensor& values, double* sums, std::size_t blocks) {
  const c10::cuda::CUDAGuard device(values.device());
  const bool is_double = values.scalar_type() == at::kDouble;
  const at::Tensor exact = (is_double ? values : values.to(at::kFloat)).contiguous();
  const at::Tensor parts = at::empty({static_cast<std::int64_t>(blocks)}, values.options().dtype(at::kDouble));
  auto* const into = parts.mutable_data_ptr<double>();
  const cudaStream_t stream = current_stream(values);
  const std::int64_t elements = exact.numel();
  C10_CUDA_CHECK(
      is_double ? gpu::sum_squares_in_blocks(const_data<double>(exact), elements, kShardBlock, into, blocks, stream)
                : gpu::sum_squares_in_blocks(const_data<float>(exact), elements, kShardBlock, into, blocks, stream));
  const at::Tensor on_host = parts.cpu();
  std::copy_n(const_data<double>(on_host), blocks, sums);
}

void DeviceUpdater::write_to_other_gpus(const ReplicaPart& mine) const {
  const WeightCopies& copies = core_.module->copies();
  const auto k = static_cast<std::size_t>(mine.index);
  gpu::Segments segments;
  std::vector<const float*> sources;
  sources.reserve(mine.owned.size() * copies.count());  // segments point into it
  for (const OwnedSegment& segment : mine.owned) {
    if (!segment.has_gradient()) continue;
    const auto& leaves = core_.module->parameters()[static_cast<std::size_t>(segment.where.parameter)].leaves;
    const std::int64_t begin = segment.where.begin, elements = segment.where.end - begin;
    for (const std::size_t other : copies.first) {
      if (copies.share(other, k)) continue;
      if (!copies.in_reach || leaves[k].scalar_type() != at::kFloat) {
        gpu::push_elements(leaves[k], leaves[other], begin, elements);
        continue;
      }
      sources.push_back(const_data<float>(leaves[k]) + begin);
      segments.push_back({.target = leaves[other].mutable_data_ptr<float>() + begin,
                          .gradients = &sources.back(),
                          .elements = elements});
    }
  }
  const c10::cuda::CUDAGuard device(bad_sums_for(mine).device());
  C10_CUDA_CHECK(gpu::sum_segments(segments, /*replicas=*/1, /*divisor=*/1, current_stream(bad_sums_for(mine))));
}

bool DeviceUpdater::are_plain(const std::vector<GradientKind>& kinds) const {
  static_assert(gpu::kChunkElements == kShardBlock);
  const auto& parameters = core_.module->parameters();
  for (std::size_t p = 0; p < parameters.size(); ++p) {  // the same on every replica
    if (kinds[p] == GradientKind::None) continue;
    const at::Tensor& leaf = parameters[p].leaves[0];
    if (kinds[p] == GradientKind::Sparse || leaf.scalar_type() != at::kFloat || !leaf.is_non_overlapping_and_dense())
      return false;
  }
  return true;
}

void DeviceUpdater::write_squares(ReplicaPart& mine) {
  const at::Tensor& block_sums = block_sums_for(mine);
  const c10::cuda::CUDAGuard device(block_sums.device());
  gpu::Segments segments;
  std::vector<double*> sums;
  std::vector<BlockRange> blocks;
  for (const OwnedSegment& segment : mine.owned) {
    const Segment& where = segment.where;
    float* const values = segment.sum.defined() ? segment.sum.mutable_data_ptr<float>() + where.begin : nullptr;
    segments.push_back({.target = values, .elements = where.end - where.begin});
    const std::size_t first_block = core_.blocks.first[static_cast<std::size_t>(where.parameter)];
    sums.push_back(block_sums.mutable_data_ptr<double>() + first_block +
                   static_cast<std::size_t>(where.begin / kShardBlock));
    add_blocks(where, first_block, blocks);
  }
  C10_CUDA_CHECK(gpu::sum_squares_of_segments(segments, sums, current_stream(block_sums)));
  for (const at::Tensor& other : block_sums_) {
    for (const BlockRange& range : blocks) {
      if (other.is_same(block_sums)) break;
      gpu::push_elements(block_sums, other, static_cast<std::int64_t>(range.begin),
                         static_cast<std::int64_t>(range.end - range.begin));
    }
  }
}

void DeviceUpdater::clip(ReplicaPart& mine, double max_norm) {
  const at::Tensor& block_sums = block_sums_for(mine);
  const c10::cuda::CUDAGuard device(block_sums.device());
  const std::int64_t blocks = block_sums.numel();
  const at::Tensor scratch = at::empty({2 * blocks + 1}, block_sums.options());
  auto* const factor = scratch.mutable_data_ptr<double>() + 2 * blocks;
  const cudaStream_t stream = current_stream(scratch);
  C10_CUDA_CHECK(gpu::norm_factor(const_data<double>(block_sums), static_cast<std::size_t>(blocks), max_norm,
                                  scratch.mutable_data_ptr<double>(), factor, stream));
  gpu::Segments segments;
  for (const OwnedSegment& segment : mine.owned) {
    if (!segment.sum.defined()) continue;
    segments.push_back({.target = segment.sum.mutable_data_ptr<float>() + segment.where.begin,
                        .elements = segment.where.end - segment.where.begin});
  }
  C10_CUDA_CHECK(gpu::shrink_segments(segments, factor, stream));
}

}  // namespace lockstep::detail
