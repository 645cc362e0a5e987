#pragma once

#include <cstddef>
#include <vector>

#include "lockstep/comm/engine/sum_plan.h"

namespace lockstep::nccl {

/// Where elements of one worker are.
struct Part {
  enum Array {
    Input,   ///< the array of a local replica
    Room,    ///< memory for what is only needed meanwhile
    Output,  ///< where the result goes
  };
  Array array;
  int index;  ///< Input: which replica; else 0
  std::size_t begin;

  Part from(std::size_t offset) const { return {array, index, begin + offset}; }
  bool operator==(const Part&) const = default;
};

/// `into` becomes the sum of `inputs` in the order of reduction_tree.h.
struct Addition {
  std::vector<Part> inputs;
  Part into;
  std::size_t elements;
  bool is_last;  ///< the sum of all replicas of all workers: a mean is divided here
};

struct Transfer {
  int peer;
  Part part;
  std::size_t elements;
};

/// What one worker does for a sum over all workers. Phase by phase; the transfers of a phase run at the same time, and those
/// between two workers are in the same order on both.
struct SumSchedule {
  std::vector<Addition> own;        ///< partial sums of this worker's replicas
  std::vector<Transfer> sends;      ///< partial sums, to the owner of each shard
  std::vector<Transfer> receives;   ///< those of the shard that this worker owns
  std::vector<Addition> additions;  ///< that finish the tree
  std::vector<Transfer> shares;     ///< the finished shard, to all
  std::vector<Transfer> collects;   ///< and theirs
  std::size_t room = 0;             ///< elements that `Room` needs
};

enum class Result {
  Everywhere,  ///< every worker gets all elements
  Shard,       ///< a worker gets the shard that it owns, at the output's beginning
};

/// `shards`: one per worker.
SumSchedule schedule_sum(const engine::SumPlan& plan, int rank, const std::vector<engine::Shard>& shards,
                         Result result);

}  // namespace lockstep::nccl
