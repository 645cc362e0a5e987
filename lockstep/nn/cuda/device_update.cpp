#include <ATen/core/grad_mode.h>
#include <ATen/ops/zeros.h>
#include <ATen/ops/zeros_like.h>
#include <c10/cuda/CUDAException.h>
#include <c10/cuda/CUDAGuard.h>
#include <torch/optim/adam.h>
#include <torch/optim/adamw.h>
#include <torch/optim/sgd.h>

#include <algorithm>
#include <utility>

#include "lockstep/nn/cuda/device_numbers.h"
#include "lockstep/nn/cuda/device_updater.h"
#include "lockstep/nn/fused_sgd.h"
#include "lockstep/nn/fused_update.h"
#include "lockstep/nn/optimizer_core.h"
#include "lockstep/nn/step/device_step.h"
#include "lockstep/nn/step/loss_scale.h"
#include "lockstep/nn/step/recording.h"
#include "lockstep/nn/step/sparse_parameters.h"
#include "lockstep/strategy/detail/strategy_access.h"
#include "lockstep/strategy/gpu.h"
#include "lockstep/strategy/strategy.h"
#include "lockstep/values/const_data.h"

// The update on the GPU: one kernel sums and applies, with numbers computed by an earlier kernel.
namespace lockstep::detail {
namespace {

template <class Options>
bool without_amsgrad(const OptimizerCore& core) {
  return std::all_of(core.groups.begin(), core.groups.end(), [](const OptimizerGroup& group) {
    return !static_cast<const Options&>(*group.options).amsgrad();
  });
}

/// The state of a segment, created at its first step.
template <class State>
State& adam_state(OptimizerCore& core, ReplicaPart& mine, const OwnedSegment& segment) {
  auto& kept = mine.inner->state()[segment.weights.unsafeGetTensorImpl()];
  if (!kept) {
    refuse_if_recording(core, "a parameter has its first gradient");
    auto fresh = std::make_unique<State>();
    fresh->step(0);
    fresh->exp_avg(at::zeros_like(segment.weights));
    fresh->exp_avg_sq(at::zeros_like(segment.weights));
    kept = std::move(fresh);
  }
  return static_cast<State&>(*kept);
}

template <class State>
void add_adam_state(OptimizerCore& core, ReplicaPart& mine, const OwnedSegment& segment, gpu::SegmentMemory& memory) {
  auto& state = adam_state<State>(core, mine, segment);
  memory.first_state = state.exp_avg().template mutable_data_ptr<float>();
  memory.second_state = state.exp_avg_sq().template mutable_data_ptr<float>();
}

void add_momentum(OptimizerCore& core, ReplicaPart& mine, std::size_t i, gpu::SegmentMemory& memory,
                  cudaStream_t stream) {
  const OwnedSegment& segment = mine.owned[i];
  if (!sgd_numbers(*core.groups[segment.group].options).has_momentum) return;
  at::Tensor& momentum = sgd_momentum_buffer(*mine.inner, segment.weights);
  if (!momentum.defined()) {
    refuse_if_recording(core, "a parameter has its first momentum");
    momentum = at::zeros_like(segment.weights);
    C10_CUDA_CHECK(cudaMemsetAsync(mine.numbers->count_of(i), 0, sizeof(std::int64_t), stream));
  }
  memory.first_state = momentum.mutable_data_ptr<float>();
}

/// The segments that take part, with their inputs.
struct Work {
  std::vector<gpu::StepRow> rows;
  gpu::Segments segments;
};

Work work_of(OptimizerCore& core, ReplicaPart& mine, FusedClass kind, cudaStream_t stream) {
  Work work;
  for (std::size_t i = 0; i < mine.owned.size(); ++i) {
    OwnedSegment& segment = mine.owned[i];
    if (segment.parts.empty()) continue;
    segment.is_counted_on_device = true;
    gpu::SegmentMemory memory{.target = segment.weights.mutable_data_ptr<float>(),
                              .gradients = segment.parts.data(),
                              .elements = segment.weights.numel()};
    if (kind == FusedClass::Sgd) add_momentum(core, mine, i, memory, stream);
    if (kind == FusedClass::Adam) add_adam_state<torch::optim::AdamParamState>(core, mine, segment, memory);
    if (kind == FusedClass::AdamW) add_adam_state<torch::optim::AdamWParamState>(core, mine, segment, memory);
    if (memory.elements == 0) continue;
    work.rows.push_back({static_cast<int>(i), static_cast<int>(segment.group)});
    work.segments.push_back(memory);
  }
  return work;
}

}  // namespace

bool has_device_update(const OptimizerCore& core) {
  const auto& parameters = core.module->parameters();
  if (parameters.empty() || !parameters.front().leaves.front().is_cuda() || core.module->copies().is_mixed ||
      core.replicas.size() > static_cast<std::size_t>(gpu::kMostReplicas))
    return false;
  switch (fused_class_of(core)) {
    case FusedClass::Sgd: return true;
    case FusedClass::Adam: return without_amsgrad<torch::optim::AdamOptions>(core);
    case FusedClass::AdamW: return without_amsgrad<torch::optim::AdamWOptions>(core);
    case FusedClass::None: break;
  }
  return false;
}

DeviceUpdater::DeviceUpdater(OptimizerCore& core) : Updater(core) {
  for (const std::size_t first : core.module->copies().first) {
    const at::TensorOptions options(core.module->strategy().replica_context(static_cast<int>(first)).device());
    block_sums_.push_back(at::zeros({std::ssize(core.blocks.sums)}, options.dtype(at::kDouble)));
    bad_sums_.push_back(at::zeros({std::ssize(core.replicas)}, options.dtype(at::kLong)));
  }
}

std::size_t DeviceUpdater::copy_of(const ReplicaPart& mine) const {
  return core_.module->copies().of_replica[static_cast<std::size_t>(mine.index)];
}

UpdateTraits DeviceUpdater::traits(const std::vector<GradientKind>& kinds) const {
  const bool is_fused = has_device_update(core_);
  const bool are_all_plain = are_plain(kinds);
  return {.adds_up = is_fused, .checks = is_fused && are_all_plain, .clips = are_all_plain};
}

void DeviceUpdater::update(ReplicaPart& mine) {
  const at::NoGradGuard no_grad;
  if (mine.owns_sparse) reconcile_layouts(core_, mine);
  if (has_device_update(core_)) leave_sums(mine);
  for (OwnedSegment& segment : mine.owned) {
    if (!segment.sum.defined() || !segment.parts.empty()) continue;
    refuse_if_recording(core_, "a gradient is sparse or not float32");
    if (segment.is_counted_on_device) settle_counts(core_, mine);
    if (std::exchange(segment.is_counted_on_device, false)) mine.numbers.reset();
  }
  const auto is_fused = [](const OwnedSegment& segment) { return !segment.parts.empty(); };
  if (mine.owned.empty() || !std::ranges::all_of(mine.owned, is_fused)) step_inner(mine);
  launch(mine);
  if (core_.module->copies().count() > 1) write_to_other_gpus(mine);
  if (mine.scale) update_scale(mine);
}

std::unique_ptr<Updater> make_device_updater(OptimizerCore& core) { return std::make_unique<DeviceUpdater>(core); }

void DeviceUpdater::leave_sums(ReplicaPart& mine) {
  const auto has_parts = [](const OwnedSegment& segment) { return !segment.parts.empty(); };
  // If the reduction left sums to the update, it handled the rest itself.
  if (std::any_of(mine.owned.begin(), mine.owned.end(), has_parts)) return;
  mine.reduced.divisor = 1;
  for (OwnedSegment& segment : mine.owned) {
    if (!segment.sum.defined() || segment.sum.is_sparse() || !segment.weights.is_contiguous() ||
        segment.weights.scalar_type() != at::kFloat)
      continue;
    segment.parts.push_back(const_data<float>(segment.sum) + segment.where.begin);
  }
}

void DeviceUpdater::launch(ReplicaPart& mine) {
  const auto first = std::find_if(mine.owned.begin(), mine.owned.end(),
                                  [](const OwnedSegment& segment) { return !segment.parts.empty(); });
  const bool is_checked = mine.plan.finite == StepPlan::Finite::Device;
  // A replica that owns nothing still counts skipped steps.
  if (first == mine.owned.end() && !is_checked) return;
  const at::Tensor& bad_sums = bad_sums_for(mine);
  const c10::cuda::CUDAGuard device(bad_sums.device());
  const cudaStream_t stream = current_stream(bad_sums);
  if (!mine.numbers) {
    refuse_if_recording(core_, "it is the optimizer's first step");
    mine.numbers = std::make_shared<DeviceNumbers>(core_, mine);
  }
  DeviceNumbers& numbers = *mine.numbers;
  if (!numbers.is_current(core_)) {
    refuse_if_recording(core_, "the optimizer's options were changed");
    numbers.send_options(core_);
  }
  const FusedClass kind = fused_class_of(core_);
  const int replicas = first == mine.owned.end() ? 1 : static_cast<int>(first->parts.size());
  const Work work = work_of(core_, mine, kind, stream);
  gpu::StepMemory memory{
      .groups = reinterpret_cast<const gpu::GroupNumbers*>(numbers.groups.mutable_data_ptr<std::uint8_t>()),
      .counts = numbers.count_of(0),
      .result = numbers.result()};
  if (is_checked) {
    memory.bad_sums = reinterpret_cast<const gpu::BadSum*>(bad_sums.mutable_data_ptr<std::int64_t>());
    memory.replicas = static_cast<int>(core_.replicas.size());
    memory.skips_all = core_.settings.not_finite == NonFinitePolicy::Raise && !mine.scale;
    numbers.has_checked = true;
  }
  numbers.has_counted = true;
  if (kind == FusedClass::Sgd) {
    auto* const steps = numbers.steps_for<gpu::SgdStep>();
    C10_CUDA_CHECK(gpu::prepare_steps(memory, work.rows, steps, stream));
    C10_CUDA_CHECK(gpu::update_sgd(work.segments, replicas, mine.reduced.divisor, steps, stream));
  } else {
    auto* const steps = numbers.steps_for<gpu::AdamStep>();
    C10_CUDA_CHECK(gpu::prepare_steps(memory, work.rows, steps, stream));
    C10_CUDA_CHECK(gpu::update_adam(work.segments, replicas, mine.reduced.divisor, steps, stream));
  }
}

void DeviceUpdater::check(ReplicaPart& mine) {
  const at::Tensor& bad_sums = bad_sums_for(mine);
  const c10::cuda::CUDAGuard device(bad_sums.device());
  gpu::Segments segments;
  std::vector<int> parameters;
  std::vector<const float*> sums(mine.owned.size());
  int replicas = 1;
  bool are_sums = StrategyAccess::workers(core_.module->strategy()) != nullptr;
  for (std::size_t i = 0; i < mine.owned.size(); ++i) {
    const OwnedSegment& segment = mine.owned[i];
    if (!segment.has_gradient()) continue;
    if (segment.parts.empty()) {
      sums[i] = const_data<float>(segment.sum) + segment.where.begin;
      are_sums |= core_.replicas.size() > 1;
    } else {
      replicas = static_cast<int>(segment.parts.size());
    }
    segments.push_back({.gradients = segment.parts.empty() ? &sums[i] : segment.parts.data(),
                        .elements = segment.where.end - segment.where.begin});
    parameters.push_back(segment.where.parameter);
  }
  auto* const bad = reinterpret_cast<gpu::BadSum*>(bad_sums.mutable_data_ptr<std::int64_t>()) + mine.index;
  C10_CUDA_CHECK(gpu::find_bad_sum(segments, parameters, replicas, are_sums, bad, current_stream(bad_sums)));
  for (const at::Tensor& other : bad_sums_) {
    if (!other.is_same(bad_sums)) gpu::push_elements(bad_sums, other, mine.index, 1);
  }
}

}  // namespace lockstep::detail
