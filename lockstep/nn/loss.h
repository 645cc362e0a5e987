#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <optional>

#include "lockstep/base/export.h"

namespace lockstep {

/// The sum of the per-example losses divided by the size of the global batch: the share of this replica in the mean
/// over all replicas. Exact for uneven and empty splits, since gradients are summed over replicas. Without
/// `global_batch` it is the number of examples here times the number of replicas.
LOCKSTEP_EXPORT at::Tensor average_loss(const at::Tensor& per_example, std::optional<std::int64_t> global_batch = {});

/// A loss that every replica computes alike, such as weight decay: divided by the number of replicas.
LOCKSTEP_EXPORT at::Tensor scale_regularization_loss(const at::Tensor& loss);

}  // namespace lockstep
