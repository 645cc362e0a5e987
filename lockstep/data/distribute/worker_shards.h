#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "lockstep/data/auto_shard_policy.h"
#include "lockstep/data/distribute/function_probe.h"
#include "lockstep/data/distribute/split.h"
#include "lockstep/data/stage.h"

// How the workers share the elements of a pipeline by TensorFlow's rules: depends on the stages' traits, and on the
// files that the functions of `flat_map` and `interleave` open. Under Assignment::ByReplica, the default, nothing is
// shared.
namespace lockstep::data {

/// Which workers report that there are fewer elements than shards.
enum class TooFew {
  FailsOnEveryWorker,
  FailsWhereSeen,  ///< as in TensorFlow: a shard that begins after the end is empty, without an error
};

/// Elements `index`, `index + shards`, ... Throws InvalidArgument at the first one if there are too few.
LOCKSTEP_EXPORT StagePtr make_required_shard(StagePtr input, int shards, int index,
                                             TooFew too_few = TooFew::FailsOnEveryWorker);

/// What a shard in a plan divides among the workers.
struct SharedOut {
  bool files = false;                                ///< file names; otherwise other elements of the pipeline
  std::optional<std::int64_t> count = std::nullopt;  ///< the number of them, if known beforehand
};

struct ShardPlan {
  /// The resulting policy, never Auto. File: files, or other elements before a reader, are shared. Data: the pieces of
  /// batches are, so split first, then shard(workers, worker).
  AutoShardPolicy by = AutoShardPolicy::Off;
  StagePtr pipeline;                      ///< with the shards of AutoShardPolicy::File and Hint in it
  std::vector<SharedOut> shared = {};     ///< what those shards divide, in the order of the pipeline's inputs
  std::string unshardable = {};           ///< why there are no files to share, if they were looked for
  std::vector<std::string> removed = {};  ///< stages removed because sharing makes them wrong
};

/// Throws NotFound for FILE if there are no files, InvalidArgument if a shard is known to have fewer files or elements
/// than there are workers, FailedPrecondition for a shard hint under a policy other than HINT. The same on every
/// worker, so none waits for one that failed. HINT without such a shard shares nothing.
///
///     map < flat_map(reads files) < list_files             AUTO, worker 0 of 3
///     map < flat_map < shard(3, 0) < list_files            becomes this: AutoShardPolicy::File
///
/// `look` caches the results of calling functions, so further plans of the pipeline do not call them again.
LOCKSTEP_EXPORT ShardPlan plan_shards(const StagePtr& pipeline, AutoShardPolicy policy, const ClusterShape& cluster,
                                      TooFew too_few, FunctionProbe& look);
LOCKSTEP_EXPORT ShardPlan plan_shards(const StagePtr& pipeline, AutoShardPolicy policy, const ClusterShape& cluster,
                                      TooFew too_few = TooFew::FailsOnEveryWorker);

/// Assignment::ByReplica: every worker reads the whole pipeline; shard hints become shards that keep everything. `by`
/// is Hint if there are some, otherwise Off. Calls no function: only files that stages declare count. Throws the same
/// errors as above, except that there cannot be too few files; FILE still requires some if there are several workers.
LOCKSTEP_EXPORT ShardPlan plan_without_shards(const StagePtr& pipeline, AutoShardPolicy policy, int workers);

/// The policy in the dataset's options; Auto if there is none.
LOCKSTEP_EXPORT AutoShardPolicy policy_of(const Stage& pipeline);

}  // namespace lockstep::data
