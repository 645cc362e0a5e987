#pragma once

#include <cstddef>
#include <vector>

#include "lockstep/comm/engine/sum_plan.h"

namespace lockstep::nccl {

/// Where elements of one worker are stored.
struct Part {
  enum Array {
    Input,   ///< the array of a local replica
    Room,    ///< temporary memory
    Output,  ///< the result
  };
  Array array;
  int index;  ///< Input: which replica; otherwise 0
  std::size_t begin;

  Part from(std::size_t offset) const { return {array, index, begin + offset}; }
  bool operator==(const Part&) const = default;
};

/// `into` becomes the sum of `inputs` in the order of reduction_tree.h.
struct Addition {
  std::vector<Part> inputs;
  Part into;
  std::size_t elements;
  bool is_last;  ///< the sum over all replicas of all workers: a mean is divided here
};

struct Transfer {
  int peer;
  Part part;
  std::size_t elements;
};

/// One worker's part of a sum over all workers. Phase by phase; the transfers of a phase run at the same time, and
/// those between two workers are in the same order on both.
struct SumSchedule {
  std::vector<Addition> own;        ///< partial sums of this worker's replicas
  std::vector<Transfer> sends;      ///< partial sums, to the owner of each shard
  std::vector<Transfer> receives;   ///< partial sums of the shard that this worker owns
  std::vector<Addition> additions;  ///< finish the tree
  std::vector<Transfer> shares;     ///< the finished shard, to all workers
  std::vector<Transfer> collects;   ///< the other workers' finished shards
  std::size_t room = 0;             ///< elements of temporary memory
};

enum class Result {
  Everywhere,  ///< every worker gets all elements
  Shard,       ///< each worker gets its own shard, at the output's beginning
};

/// `shards`: one per worker.
SumSchedule schedule_sum(const engine::SumPlan& plan, int rank, const std::vector<engine::Shard>& shards,
                         Result result);

}  // namespace lockstep::nccl
