#pragma once

#include <ATen/core/Tensor.h>

#include <string>
#include <vector>

#include "lockstep/base/deadline.h"
#include "lockstep/comm/communication_options.h"
#include "lockstep/comm/local/replica_team.h"
#include "lockstep/comm/reduce_op.h"
#include "lockstep/comm/worker_group.h"
#include "lockstep/values/reducible.h"

// Collectives of replicas. Those of one process are threads: every replica calls with its own leaves; what differs between
// replicas (operation, structure, shapes, types) is found before any value is used, and all of them raise the same error.
// With `workers`, the replicas of all of them take part: the first of each process then acts for its own, once these agree.
namespace lockstep::local {

using Leaves = std::vector<ReducibleLeaf>;

/// Each replica's leaves, added up over replicas in the one order of summation. Small values are added by every replica
/// for itself; of large ones every replica adds one shard and writes it to all: a reduce-scatter and all-gather in one
/// pass.
Leaves all_reduce(Seat& seat, WorkerGroup* workers, ReduceOp op, const Leaves& leaves, const std::string& structure,
                  const CommunicationOptions& options);

/// The same for one tensor, without a structure to look at.
at::Tensor all_reduce(Seat& seat, WorkerGroup* workers, ReduceOp op, const at::Tensor& value,
                      const CommunicationOptions& options);

/// Each leaf of all replicas, concatenated along `axis`. `begins` receives where this replica's part of each
/// begins.
Leaves all_gather(Seat& seat, WorkerGroup* workers, const Leaves& leaves, std::int64_t axis,
                  const std::string& structure, std::vector<std::int64_t>& begins, const Deadline& deadline);

}  // namespace lockstep::local
