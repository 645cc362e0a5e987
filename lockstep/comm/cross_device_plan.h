#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "lockstep/base/export.h"

namespace lockstep {

/// Where the sums of a reduction happen. What they give does not depend on it: all but Nccl add in the one order of
/// summation (reduction_tree.h).
enum class Algorithm {
  Ordered,           ///< each device sums one shard of the value and sends it to the others
  OneDevice,         ///< one device sums everything
  HierarchicalCopy,  ///< two groups of devices sum on their own, then with each other
  Nccl,              ///< NVIDIA's library
};

LOCKSTEP_EXPORT std::string_view to_string(Algorithm algorithm);  ///< "ordered", "one device", ...

/// Throws InvalidArgument if values cannot be packed into `num_packs` packs; 0 means no packing.
LOCKSTEP_EXPORT void check_num_packs(Algorithm algorithm, int num_packs);

struct ReductionStep {
  enum class Action {
    Sum,        ///< `device` adds what the `others` (itself maybe among them) hold and keeps the result
    Send,       ///< `device` gives what it holds to the `others`
    AllReduce,  ///< the `others` hand their values to an engine and each gets the sum; `device` plays no part
  };

  Action action;
  int device = -1;
  std::vector<int> others;
  std::optional<int> shard;  ///< the part of the value that is meant; none: the whole

  bool operator==(const ReductionStep&) const = default;
};

/// A reduction over devices 0..devices-1 after which each of them holds the sum.
struct ReductionPlan {
  Algorithm algorithm = Algorithm::Ordered;
  int devices = 0;
  int pack = 0;
  std::vector<ReductionStep> steps;
};

/// `pack` is the number of the pack in its batch: HierarchicalCopy sums each on other devices, to spread the work.
LOCKSTEP_EXPORT ReductionPlan plan_reduction(Algorithm algorithm, int devices, int pack = 0);

/// One line per step:
///
///     hierarchical copy over 4 devices, pack 1
///       1: sum of 0, 1
///       3: sum of 2, 3
///       1: sum of 1, 3
///       1 -> 3
///       1 -> 0
///       3 -> 2
LOCKSTEP_EXPORT std::string to_string(const ReductionPlan& plan);

}  // namespace lockstep
