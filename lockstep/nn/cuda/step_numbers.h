#pragma once

#include "lockstep/nn/cuda/segment_kernels.h"

// What an update is made with, worked out on the GPU: the number of steps that a segment has made, and what follows from it and
// from the optimizer's options. Launches only.
namespace lockstep::gpu {

/// The options of a group of parameters.
struct GroupNumbers {
  double learning_rate, beta1, beta2, eps, weight_decay;  ///< of Adam and AdamW
  std::int64_t is_adamw;
  SgdStep sgd;  ///< without `first_step` and `skip`
};

/// What the check of a replica's sums has come to so far.
struct CheckResult {
  BadSum bad;            ///< since the host last looked
  std::int64_t skipped;  ///< steps
};

/// A segment that takes part in a step.
struct StepRow {
  int segment = 0;  ///< which of `counts` is its own
  int group = 0;
};

/// Everything here is on the GPU.
struct StepMemory {
  const GroupNumbers* groups = nullptr;
  std::int64_t* counts = nullptr;  ///< steps that each segment has made
  CheckResult* result = nullptr;
  /// One of each replica; null: the sums have not been checked. If one is not finite, the step is skipped.
  const BadSum* bad_sums = nullptr;
  int replicas = 0;
  bool skips_all = false;  ///< and all that follow, until the host has looked
};

cudaError_t set_group(const GroupNumbers& from, GroupNumbers* into, cudaStream_t stream);
/// Counts a step of each row and writes its numbers to `steps`, which has one for each row.
cudaError_t prepare_steps(const StepMemory& memory, const std::vector<StepRow>& rows, SgdStep* steps,
                          cudaStream_t stream);
cudaError_t prepare_steps(const StepMemory& memory, const std::vector<StepRow>& rows, AdamStep* steps,
                          cudaStream_t stream);

/// A loss scale, on the GPU, and how it changes: as GradScaler::update says.
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
