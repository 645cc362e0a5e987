#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <optional>

#include "lockstep/base/export.h"

namespace lockstep {

/// Options of `average_loss`.
struct AverageLossOptions {
  /// The number of examples of all replicas; by default they are counted.
  std::optional<std::int64_t> global_batch = {};
  /// Multiplies each loss: one number per example, or one for all. The sum is still divided by the number of examples,
  /// not by the sum of the weights.
  at::Tensor sample_weight = {};
};

/// The sum of the per-example losses divided by the number of examples of all replicas: this replica's share of the
/// mean. Exact for uneven and empty parts, since gradients are summed over replicas.
///
///     optimizer.minimize(ls::average_loss(losses));           // inside run, on every replica
///     optimizer.minimize(ls::average_loss(losses, 256));      // the size is known
///     ls::average_loss(losses, {.sample_weight = weights});
///
/// Without a size the losses of all replicas are counted. If there is one per row of the batch given to `run`, the
/// count is known already; otherwise the replicas meet. In a window of `set_accumulate` you must pass the size: the
/// rows of the whole window.
LOCKSTEP_EXPORT at::Tensor average_loss(const at::Tensor& per_example, std::optional<std::int64_t> global_batch = {});
LOCKSTEP_EXPORT at::Tensor average_loss(const at::Tensor& per_example, const AverageLossOptions& options);

/// The same by TensorFlow's rule (tf.nn.compute_average_loss): without a size, the number of examples here times the
/// number of replicas. Correct only if all replicas have equally many.
LOCKSTEP_EXPORT at::Tensor compute_average_loss(const at::Tensor& per_example, const AverageLossOptions& options = {});

/// Inside run, on every replica: the total rows of `mine` and the other replicas' arguments. Outside run use
/// global_rows of a PerReplica.
LOCKSTEP_EXPORT std::int64_t global_rows(const at::Tensor& mine);

/// A loss that every replica computes identically, such as weight decay: divided by the number of replicas.
LOCKSTEP_EXPORT at::Tensor scale_regularization_loss(const at::Tensor& loss);

}  // namespace lockstep
