#pragma once

#include <functional>
#include <vector>

#include "lockstep/comm/communication_options.h"
#include "lockstep/comm/reduce_op.h"
#include "lockstep/values/reducible.h"

// Collectives that autograd can go back through. The gradient of a collective is a collective: every replica has to run
// its backward pass, inside the same run.
namespace lockstep {

class ReplicaContext;

using LeafCollective = std::function<std::vector<ReducibleLeaf>(const std::vector<ReducibleLeaf>&)>;

/// Backward: the all-reduce of the incoming gradients with the same operation.
std::vector<ReducibleLeaf> differentiable_all_reduce(ReplicaContext& replica, ReduceOp op,
                                                     std::vector<ReducibleLeaf> leaves,
                                                     const CommunicationOptions& options, const LeafCollective& reduce);

/// Whether backward from here begins with that.
bool is_from_all_reduce(const at::Tensor& result);

/// Also says where this replica's part of each result begins.
using LeafGather =
    std::function<std::vector<ReducibleLeaf>(const std::vector<ReducibleLeaf>&, std::vector<std::int64_t>& begins)>;

/// Backward: the sum of the incoming gradients, of which each replica takes the part that it gave.
std::vector<ReducibleLeaf> differentiable_all_gather(ReplicaContext& replica, std::vector<ReducibleLeaf> leaves,
                                                     std::int64_t axis, const CommunicationOptions& options,
                                                     const LeafGather& gather);

}  // namespace lockstep
