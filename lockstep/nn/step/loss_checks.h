#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <span>

// A loss that is not what an optimizer needs: what can be told from the tensor, and from how it was computed.
namespace lockstep::detail {

struct OptimizerCore;
struct ReplicaPart;

/// Throws if no step can be right with it, and warns where one may be wrong. Before its backward.
void check_loss(const OptimizerCore& core, ReplicaPart& mine, const at::Tensor& loss);

/// Warns if the losses of one step were divided by different sizes. `sizes`: one for each replica or worker (`who`); 0
/// where no size was given.
void warn_of_different_sizes(const OptimizerCore& core, std::span<const std::int64_t> sizes, const char* who);

}  // namespace lockstep::detail
