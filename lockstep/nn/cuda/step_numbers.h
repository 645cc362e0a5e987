#pragma once

#include "lockstep/nn/cuda/segment_kernels.h"

// The numbers of an update, computed on the GPU: each segment's number of steps, and values derived from it and from
// the optimizer's options. Launches only.
namespace lockstep::gpu {

/// The options of a group of parameters.
struct GroupNumbers {
  double learning_rate, beta1, beta2, eps, weight_decay;  ///< for Adam and AdamW
  std::int64_t is_adamw;
  SgdStep sgd;  ///< without `first_step` and `skip`
};

/// The accumulated result of checking a replica's sums.
struct CheckResult {
  BadSum bad;            ///< since the host last fetched it
  std::int64_t skipped;  ///< steps
};

/// A segment that takes part in a step.
struct StepRow {
  int segment = 0;  ///< its index in `counts`
  int group = 0;
};

/// Everything here is on the GPU.
struct StepMemory {
  const GroupNumbers* groups = nullptr;
  std::int64_t* counts = nullptr;  ///< steps made by each segment
  CheckResult* result = nullptr;
  /// One per replica; null: the sums were not checked. If one is not finite, the step is skipped.
  const BadSum* bad_sums = nullptr;
  int replicas = 0;
  bool skips_all = false;  ///< skips all later steps too, until the host has fetched the result
};

cudaError_t set_group(const GroupNumbers& from, GroupNumbers* into, cudaStream_t stream);
/// Counts a step of each row and writes its numbers to `steps`, one entry per row.
cudaError_t prepare_steps(const StepMemory& memory, const std::vector<StepRow>& rows, SgdStep* steps,
                          cudaStream_t stream);
cudaError_t prepare_steps(const StepMemory& memory, const std::vector<StepRow>& rows, AdamStep* steps,
                          cudaStream_t stream);

/// A loss scale on the GPU; it changes as in GradScaler::update.
struct ScaleNumbers {
  double scale, good_steps, inverse;
};
struct ScaleRule {
  double growth, backoff, interval, least;
};
cudaError_t set_scale(const ScaleNumbers& from, ScaleNumbers* into, cudaStream_t stream);
cudaError_t update_scale(const ScaleRule& rule, const BadSum* bad_sums, int replicas, ScaleNumbers* scale,
                         cudaStream_t stream);

}  // namespace lockstep::gpu
