#pragma once

#include <cstdint>
#include <optional>

#include "lockstep/comm/reduce_op.h"

namespace lockstep {

/// What to do when a reduced gradient holds NaN or infinity. GPUs find it a step later, see docs/gpu.md; nothing has been changed
/// there either.
enum class NotFinite {
  Ignore,    ///< as LibTorch does. The default: checking costs a pass over the gradients and a meeting per step
  Raise,     ///< an error that names parameter and replica; nothing has been changed
  SkipStep,  ///< leave the weights as they are and go on
};

/// Whose gradients `apply_gradients` is given.
enum class GradientsOf {
  ThisReplica,  ///< of the calling replica's rows; they are brought together
  AllReplicas,  ///< brought together already, the same on every replica
};

/// Comparing what replicas hold, to notice memory that went bad or code that changed one replica alone.
struct DigestOptions {
  /// Steps between comparisons; 0: never. A comparison costs one pass over what is compared.
  std::int64_t every = 0;
  /// Compare the model's buffers too. Those of ordinary batch norm differ; those of SyncBatchNorm must not.
  bool buffers = false;

  bool operator==(const DigestOptions&) const = default;
};

namespace detail {

/// What `set_*` has set. Read by all replicas inside run, written outside of it.
struct OptimizerSettings {
  ReduceOp reduce_op = ReduceOp::Sum;
  std::optional<double> clip_global_norm;
  std::optional<double> clip_value;
  NotFinite not_finite = NotFinite::Ignore;
  int accumulate = 1;  ///< calls of minimize per update
  DigestOptions digest;

  bool operator==(const OptimizerSettings&) const = default;
  /// Whether something has to be known of all sums before the first weight may change.
  bool checks_before_update() const { return clip_global_norm || clip_value || not_finite != NotFinite::Ignore; }
};

}  // namespace detail
}  // namespace lockstep
