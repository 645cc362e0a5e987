#include <algorithm>

#include "lockstep/nn/cuda/step_numbers.h"

namespace lockstep::gpu {
namespace {

constexpr int kMostStepRows = 400;  // so that they fit into a kernel's 4 KB of arguments

struct StepRows {
  StepRow rows[kMostStepRows];
  int count;
  bool is_first;  ///< of the launches of a step
};

__device__ void fill_in(const GroupNumbers& group, std::int64_t count, SgdStep& step) {
  step = group.sgd;
  step.first_step = count == 1;
}

/// As LibTorch works them out on the host.
__device__ void fill_in(const GroupNumbers& group, std::int64_t count, AdamStep& step) {
  const double bias1 = 1 - pow(group.beta1, static_cast<double>(count));
  const double bias2 = 1 - pow(group.beta2, static_cast<double>(count));
  step.beta1 = static_cast<float>(group.beta1);
  step.one_less_beta1 = static_cast<float>(1 - group.beta1);
  step.beta2 = static_cast<float>(group.beta2);
  step.one_less_beta2 = static_cast<float>(1 - group.beta2);
  // LibTorch multiplies by the reciprocal of a plain number on GPUs.
  step.one_over_root_of_bias2 = static_cast<float>(1 / sqrt(bias2));
  step.eps = static_cast<float>(group.eps);
  step.step_size = static_cast<float>(group.learning_rate / bias1);
  const bool is_adamw = group.is_adamw != 0;
  step.weight_decay = is_adamw ? 0.0f : static_cast<float>(group.weight_decay);
  step.keep_of_weights = is_adamw ? static_cast<float>(1 - group.learning_rate * group.weight_decay) : 1.0f;
}

template <class Step>
__global__ void prepare(const __grid_constant__ StepMemory memory, const __grid_constant__ StepRows rows, Step* steps) {
  BadSum bad = kAllFinite;
  if (memory.bad_sums != nullptr) {
    for (int k = 0; k < memory.replicas; ++k) bad = min(bad, memory.bad_sums[k]);
    if (memory.skips_all) bad = min(bad, memory.result->bad);
    __syncthreads();
    if (threadIdx.x == 0 && bad != kAllFinite) {
      if (memory.skips_all) memory.result->bad = bad;
      if (rows.is_first) ++memory.result->skipped;
    }
  }
  for (int i = static_cast<int>(threadIdx.x); i < rows.count; i += static_cast<int>(blockDim.x)) {
    std::int64_t& count = memory.counts[rows.rows[i].segment];
    const bool skip = bad != kAllFinite;
    if (!skip) fill_in(memory.groups[rows.rows[i].group], ++count, steps[i]);
    steps[i].skip = skip;
  }
}

template <class Step>
cudaError_t launch_prepare(const StepMemory& memory, const std::vector<StepRow>& rows, Step* steps,
                           cudaStream_t stream) {
  static_assert(sizeof(StepMemory) + sizeof(StepRows) + sizeof(Step*) <= 4096);
  StepRows some;
  for (std::size_t first = 0; first == 0 || first < rows.size(); first += kMostStepRows) {
    const std::size_t count = std::min<std::size_t>(kMostStepRows, rows.size() - first);
    std::copy_n(rows.begin() + static_cast<std::ptrdiff_t>(first), count, some.rows);
    some.count = static_cast<int>(count);
    some.is_first = first == 0;
    prepare<<<1, 128, 0, stream>>>(memory, some, steps + first);
  }
  return cudaGetLastError();
}

template <class T>
__global__ void assign(const __grid_constant__ T from, T* into) {
  *into = from;
}

__global__ void change_scale(ScaleRule rule, const BadSum* bad_sums, int replicas, ScaleNumbers* numbers) {
  bool is_finite = true;
  for (int k = 0; k < replicas; ++k) is_finite = is_finite && bad_sums[k] == kAllFinite;
  double scale = numbers->scale, good_steps = numbers->good_steps + 1;
  if (!is_finite) {
    scale = max(scale * rule.backoff, rule.least);
    good_steps = 0;
  } else if (good_steps >= rule.interval) {
    scale = isfinite(scale * rule.growth) ? scale * rule.growth : scale;
    good_steps = 0;
  }
  *numbers = {scale, good_steps, 1.0 / scale};
}

}  // namespace

cudaError_t set_group(const GroupNumbers& from, GroupNumbers* into, cudaStream_t stream) {
  assign<<<1, 1, 0, stream>>>(from, into);
  return cudaGetLastError();
}

cudaError_t set_scale(const ScaleNumbers& from, ScaleNumbers* into, cudaStream_t stream) {
  assign<<<1, 1, 0, stream>>>(from, into);
  return cudaGetLastError();
}

cudaError_t update_scale(const ScaleRule& rule, const BadSum* bad_sums, int replicas, ScaleNumbers* scale,
                         cudaStream_t stream) {
  change_scale<<<1, 1, 0, stream>>>(rule, bad_sums, replicas, scale);
  return cudaGetLastError();
}

cudaError_t prepare_steps(const StepMemory& memory, const std::vector<StepRow>& rows, SgdStep* steps,
                          cudaStream_t stream) {
  return launch_prepare(memory, rows, steps, stream);
}

cudaError_t prepare_steps(const StepMemory& memory, const std::vector<StepRow>& rows, AdamStep* steps,
                          cudaStream_t stream) {
  return launch_prepare(memory, rows, steps, stream);
}

}  // namespace lockstep::gpu
