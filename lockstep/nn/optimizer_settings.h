#pragma once

#include <cstdint>
#include <optional>

#include "lockstep/comm/reduce_op.h"

namespace lockstep {

/// What to do if a reduced gradient is NaN or infinite. GPUs find it a step later, see docs/gpu.md; nothing has been
/// changed there either.
enum class NonFinitePolicy {
  Ignore,    ///< as LibTorch does. The default: checking costs a pass over the gradients and a meeting per step
  Raise,     ///< an error that names parameter and replica; nothing is changed
  SkipStep,  ///< leave the weights unchanged and continue
};

/// Whose gradients are passed to `apply_gradients`.
enum class GradientsOf {
  ThisReplica,  ///< gradients of the calling replica's rows; they will be reduced
  AllReplicas,  ///< reduced already, the same on every replica
};

/// Comparing replicas, to detect memory corruption or code that changed only one replica.
struct DigestOptions {
  /// Steps between comparisons; 0: never. A comparison costs one pass over the compared tensors.
  std::int64_t every = 0;
  /// Compare the model's buffers too. Ordinary batch norm's differ; SyncBatchNorm's must not.
  bool buffers = false;

  bool operator==(const DigestOptions&) const = default;
};

namespace detail {

/// The settings of `set_*`. Read by all replicas inside run, written outside of it.
struct OptimizerSettings {
  ReduceOp reduce_op = ReduceOp::Sum;
  std::optional<double> clip_global_norm;
  std::optional<double> clip_value;
  NonFinitePolicy not_finite = NonFinitePolicy::Ignore;
  int accumulate = 1;  ///< calls of minimize per update
  DigestOptions digest;

  bool operator==(const OptimizerSettings&) const = default;
  /// Whether all sums must be inspected before the first weight may change.
  bool checks_before_update() const { return clip_global_norm || clip_value || not_finite != NonFinitePolicy::Ignore; }
};

}  // namespace detail
}  // namespace lockstep
