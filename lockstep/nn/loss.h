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
  /// What each loss is multiplied by: one number for each example, or one for all. The sum is divided by the number of
  /// examples all the same, not by the sum of the weights.
  at::Tensor sample_weight = {};
};

/// The sum of the per-example losses divided by the number of examples of all replicas: the share of this replica in the
/// mean. Exact for uneven and empty parts, since gradients are summed over replicas.
///
///     optimizer.minimize(ls::average_loss(losses));           // inside run, on every replica
///     optimizer.minimize(ls::average_loss(losses, 256));      // the size is known
///     ls::average_loss(losses, {.sample_weight = weights});
///
/// Without a size the losses of all replicas are counted. Where there is one for each row of the batch that was given to
/// `run`, that is known already; otherwise it takes a meeting. In a window of `set_accumulate` the size must be given:
/// the rows of the whole window.
LOCKSTEP_EXPORT at::Tensor average_loss(const at::Tensor& per_example, std::optional<std::int64_t> global_batch = {});
LOCKSTEP_EXPORT at::Tensor average_loss(const at::Tensor& per_example, const AverageLossOptions& options);

/// The same by TensorFlow's rule (tf.nn.compute_average_loss): without a size, the number of examples here times the
/// number of replicas. Right only where all replicas have equally many.
LOCKSTEP_EXPORT at::Tensor compute_average_loss(const at::Tensor& per_example, const AverageLossOptions& options = {});

/// Inside run, on every replica: the rows of `mine` and of what the other replicas give, together. Outside of replicas
/// see global_rows of a PerReplica.
LOCKSTEP_EXPORT std::int64_t global_rows(const at::Tensor& mine);

/// A loss that every replica computes alike, such as weight decay: divided by the number of replicas.
LOCKSTEP_EXPORT at::Tensor scale_regularization_loss(const at::Tensor& loss);

}  // namespace lockstep
