#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <span>

#include "lockstep/comm/reduce_op.h"

// A loss that is not what an optimizer needs: what can be told from the tensor, and from how it was computed.
namespace lockstep::detail {

struct OptimizerCore;
struct ReplicaPart;

/// Throws if no step can be right with it, and notes what `warn_of_losses` looks at. Before its backward.
void check_loss(const OptimizerCore& core, ReplicaPart& mine, const at::Tensor& loss);

/// Warns where gradients of such losses are not to be brought together by `op`. In a meeting, on replica 0.
void warn_of_losses(const OptimizerCore& core, ReduceOp op);

/// Warns if the losses of one step were divided by different sizes. `sizes`: one for each replica or worker (`who`); 0
/// where no size was given.
void warn_of_different_sizes(const OptimizerCore& core, std::span<const std::int64_t> sizes, const char* who);

}  // namespace lockstep::detail
