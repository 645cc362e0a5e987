#include "lockstep/nn/step/device_step.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/zeros_like.h>
#include <c10/cuda/CUDAException.h>
#include <c10/cuda/CUDAGuard.h>
#include <c10/cuda/CUDAStream.h>
#include <torch/optim/adam.h>
#include <torch/optim/adamw.h>
#include <torch/optim/sgd.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <typeinfo>

#include "lockstep/nn/cuda/norm_kernels.h"
#include "lockstep/nn/cuda/segment_kernels.h"
#include "lockstep/nn/optimizer_core.h"
#include "lockstep/nn/shard_plan.h"
#include "lockstep/nn/torch_optimizers.h"
#include "lockstep/values/const_data.h"

namespace lockstep::detail {
namespace {

cudaStream_t current_stream(const at::Tensor& tensor) {
  return c10::cuda::getCurrentCUDAStream(tensor.device().index()).stream();
}

gpu::SegmentMemory memory_of(const OwnedSegment& segment) {
  return {.target = segment.weights.mutable_data_ptr<float>(),
          .gradients = segment.parts.data(),
          .elements = segment.weights.numel()};
}

/// Segments that are updated with the same numbers: one launch for all of them.
template <class Key>
using Launches = std::map<Key, gpu::Segments>;

/// `replicas`: how many parts a segment has.
void update_sgd(ReplicaPart& mine, int replicas, cudaStream_t stream) {
  Launches<std::pair<std::size_t, bool>> launches;  // by group, and whether it is a parameter's first step
  for (const OwnedSegment& segment : mine.owned) {
    if (segment.parts.empty()) continue;
    gpu::SegmentMemory memory = memory_of(segment);
    bool is_first = false;
    if (sgd_numbers(mine.inner->param_groups()[segment.group].options()).has_momentum) {
      at::Tensor& momentum = sgd_momentum_buffer(*mine.inner, segment.weights);
      is_first = !momentum.defined();
      if (is_first) momentum = at::empty_like(segment.weights);
      memory.first_state = momentum.mutable_data_ptr<float>();
    }
    launches[{segment.group, is_first}].push_back(memory);
  }
  for (const auto& [key, segments] : launches) {
    const SgdNumbers numbers = sgd_numbers(mine.inner->param_groups()[key.first].options());
    const gpu::SgdStep step{.learning_rate = numbers.learning_rate,
                            .momentum = numbers.momentum,
                            .one_less_dampening = numbers.one_less_dampening,
                            .weight_decay = numbers.weight_decay,
                            .nesterov = numbers.nesterov,
                            .first_step = key.second};
    C10_CUDA_CHECK(gpu::update_sgd(segments, replicas, mine.divisor, step, stream));
  }
}

template <class Options>
gpu::AdamStep adam_step(const Options& options, std::int64_t step) {
  const auto [beta1, beta2] = options.betas();
  const double bias1 = 1 - std::pow(beta1, step);
  const double bias2 = 1 - std::pow(beta2, step);
  constexpr bool kIsAdamW = std::is_same_v<Options, torch::optim::AdamWOptions>;
  const double decay = options.weight_decay();
  return {.beta1 = static_cast<float>(beta1),
          .one_less_beta1 = static_cast<float>(1 - beta1),
          .beta2 = static_cast<float>(beta2),
          .one_less_beta2 = static_cast<float>(1 - beta2),
          // LibTorch multiplies by the reciprocal of a plain number on GPUs.
          .one_over_root_of_bias2 = static_cast<float>(1 / std::sqrt(bias2)),
          .eps = static_cast<float>(options.eps()),
          .step_size = static_cast<float>(options.lr() / bias1),
          .weight_decay = kIsAdamW ? 0.0F : static_cast<float>(decay),
          .keep_of_weights = kIsAdamW ? static_cast<float>(1 - options.lr() * decay) : 1.0F};
}

template <class State, class Options>
void update_adam(ReplicaPart& mine, int replicas, cudaStream_t stream) {
  Launches<std::pair<std::size_t, std::int64_t>> launches;  // by group and number of steps
  auto& states = mine.inner->state();
  for (const OwnedSegment& segment : mine.owned) {
    if (segment.parts.empty()) continue;
    auto& kept = states[segment.weights.unsafeGetTensorImpl()];
    if (!kept) {
      auto fresh = std::make_unique<State>();
      fresh->step(0);
      fresh->exp_avg(at::zeros_like(segment.weights));
      fresh->exp_avg_sq(at::zeros_like(segment.weights));
      kept = std::move(fresh);
    }
    auto& state = static_cast<State&>(*kept);
    state.step(state.step() + 1);
    gpu::SegmentMemory memory = memory_of(segment);
    memory.first_state = state.exp_avg().template mutable_data_ptr<float>();
    memory.second_state = state.exp_avg_sq().template mutable_data_ptr<float>();
    launches[{segment.group, state.step()}].push_back(memory);
  }
  for (const auto& [key, segments] : launches) {
    const auto& options = static_cast<const Options&>(mine.inner->param_groups()[key.first].options());
    C10_CUDA_CHECK(gpu::update_adam(segments, replicas, mine.divisor, adam_step(options, key.second), stream));
  }
}

template <class Options>
bool without_amsgrad(const OptimizerCore& core) {
  return std::all_of(core.groups.begin(), core.groups.end(), [](const OptimizerGroup& group) {
    return !static_cast<const Options&>(*group.options).amsgrad();
  });
}

}  // namespace

bool has_device_update(const OptimizerCore& core) {
  const auto& parameters = core.module->parameters();
  if (parameters.empty() || !parameters.front().leaves.front().is_cuda() ||
      core.replicas.size() > static_cast<std::size_t>(gpu::kMostReplicas))
    return false;
  // Exactly these types: a class derived from one of them may do something else.
  const torch::optim::Optimizer& inner = *core.replicas.front()->inner;
  if (typeid(inner) == typeid(torch::optim::SGD)) return true;
  if (typeid(inner) == typeid(torch::optim::Adam)) return without_amsgrad<torch::optim::AdamOptions>(core);
  if (typeid(inner) == typeid(torch::optim::AdamW)) return without_amsgrad<torch::optim::AdamWOptions>(core);
  return false;
}

void leave_sums_to_device(ReplicaPart& mine) {
  const auto has_parts = [](const OwnedSegment& segment) { return !segment.parts.empty(); };
  // Where the reduction has left what it could to the update, the rest is not for it.
  if (std::any_of(mine.owned.begin(), mine.owned.end(), has_parts)) return;
  mine.divisor = 1;
  for (OwnedSegment& segment : mine.owned) {
    if (!segment.sum.defined() || segment.sum.is_sparse() || !segment.weights.is_contiguous() ||
        segment.weights.scalar_type() != at::kFloat)
      continue;
    segment.parts.push_back(const_data<float>(segment.sum) + segment.where.begin);
  }
}

void update_on_device(OptimizerCore& core, ReplicaPart& mine) {
  const auto first = std::find_if(mine.owned.begin(), mine.owned.end(),
                                  [](const OwnedSegment& segment) { return !segment.parts.empty(); });
  if (first == mine.owned.end()) return;
  const c10::cuda::CUDAGuard device(first->weights.device());
  const cudaStream_t stream = current_stream(first->weights);
  const auto replicas = static_cast<int>(first->parts.size());
  const torch::optim::Optimizer& inner = *core.replicas.front()->inner;
  if (typeid(inner) == typeid(torch::optim::SGD)) {
    update_sgd(mine, replicas, stream);
  } else if (typeid(inner) == typeid(torch::optim::Adam)) {
    update_adam<torch::optim::AdamParamState, torch::optim::AdamOptions>(mine, replicas, stream);
  } else {
    update_adam<torch::optim::AdamWParamState, torch::optim::AdamWOptions>(mine, replicas, stream);
  }
}

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

bool can_clip_on_device(const OptimizerCore& core, const ReplicaPart& mine) {
  static_assert(gpu::kChunkElements == kShardBlock);
  if (!core.on_device) return false;
  const auto& parameters = core.module->parameters();
  for (std::size_t p = 0; p < parameters.size(); ++p) {  // the same on every replica
    if (mine.kinds[p] == GradientKind::None) continue;
    const at::Tensor& leaf = parameters[p].leaves[0];
    if (mine.kinds[p] == GradientKind::Sparse || leaf.scalar_type() != at::kFloat ||
        !leaf.is_non_overlapping_and_dense())
      return false;
  }
  return true;
}

void write_squares_on_device(OptimizerCore& core, ReplicaPart& mine) {
  const c10::cuda::CUDAGuard device(core.device_block_sums.device());
  gpu::Segments segments;
  std::vector<double*> sums;
  for (const OwnedSegment& segment : mine.owned) {
    const Segment& where = segment.where;
    float* const values = segment.sum.defined() ? segment.sum.mutable_data_ptr<float>() + where.begin : nullptr;
    segments.push_back({.target = values, .elements = where.end - where.begin});
    sums.push_back(core.device_block_sums.mutable_data_ptr<double>() +
                   core.first_block[static_cast<std::size_t>(where.parameter)] +
                   static_cast<std::size_t>(where.begin / kShardBlock));
  }
  C10_CUDA_CHECK(gpu::sum_squares_of_segments(segments, sums, current_stream(core.device_block_sums)));
}

void clip_on_device(OptimizerCore& core, ReplicaPart& mine, double max_norm) {
  const c10::cuda::CUDAGuard device(core.device_block_sums.device());
  const std::int64_t blocks = core.device_block_sums.numel();
  const at::Tensor scratch = at::empty({2 * blocks + 1}, core.device_block_sums.options());
  auto* const factor = scratch.mutable_data_ptr<double>() + 2 * blocks;
  const cudaStream_t stream = current_stream(scratch);
  C10_CUDA_CHECK(gpu::norm_factor(const_data<double>(core.device_block_sums), static_cast<std::size_t>(blocks),
                                  max_norm, scratch.mutable_data_ptr<double>(), factor, stream));
  gpu::Segments segments;
  for (const OwnedSegment& segment : mine.owned) {
    if (!segment.sum.defined()) continue;
    segments.push_back({.target = segment.sum.mutable_data_ptr<float>() + segment.where.begin,
                        .elements = segment.where.end - segment.where.begin});
  }
  C10_CUDA_CHECK(gpu::shrink_segments(segments, factor, stream));
}

}  // namespace lockstep::detail
