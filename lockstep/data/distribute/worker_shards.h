#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "lockstep/data/auto_shard_policy.h"
#include "lockstep/data/distribute/function_look.h"
#include "lockstep/data/distribute/split.h"
#include "lockstep/data/stage.h"

// How the workers share the elements of a pipeline, by TensorFlow's rules: a function of the stages' traits, and of what
// the functions of `flat_map` and `interleave` open. Under Assignment::ByReplica, the default, nothing is shared.
namespace lockstep::data {

/// Which workers report that there are elements, but fewer than shards.
enum class TooFew {
  FailsOnEveryWorker,
  FailsWhereSeen,  ///< as in TensorFlow: a shard that begins behind the end is empty, without an error
};

/// Elements `index`, `index + shards`, ... InvalidArgument in place of the first one if there are too few.
LOCKSTEP_EXPORT StagePtr make_required_shard(StagePtr input, int shards, int index,
                                             TooFew too_few = TooFew::FailsOnEveryWorker);

/// What one shard of a plan gives each worker a part of.
struct SharedOut {
  bool files = false;                                ///< names of files; else other elements of the pipeline
  std::optional<std::int64_t> count = std::nullopt;  ///< if known beforehand
};

struct ShardPlan {
  /// What the policy comes to, which is never Auto. File: the files, or other elements before a reader, are shared out.
  /// Data: pieces are, so split first, then shard(workers, worker).
  AutoShardPolicy by = AutoShardPolicy::Off;
  StagePtr pipeline;                      ///< with the shards of AutoShardPolicy::File and Hint in it
  std::vector<SharedOut> shared = {};     ///< what those shards share out, in the order of the pipeline's inputs
  std::string unshardable = {};           ///< why there are no files to share out, where they were looked for
  std::vector<std::string> removed = {};  ///< stages that were left out because sharing out makes them wrong
};

/// Throws NotFound for FILE where there are no files, InvalidArgument where a shard is known to have fewer files or
/// elements than there are workers, FailedPrecondition for a shard hint under another policy than HINT. The same on
/// every worker: none of them waits for one that has failed. HINT without such a shard shares out nothing.
///
///     map < flat_map(reads files) < list_files             AUTO, worker 0 of 3
///     map < flat_map < shard(3, 0) < list_files            becomes this: AutoShardPolicy::File
///
/// `look` remembers what was seen in functions, so that further plans of the pipeline do not call them again.
LOCKSTEP_EXPORT ShardPlan plan_shards(const StagePtr& pipeline, AutoShardPolicy policy, const ClusterShape& cluster,
                                      TooFew too_few, FunctionLook& look);
LOCKSTEP_EXPORT ShardPlan plan_shards(const StagePtr& pipeline, AutoShardPolicy policy, const ClusterShape& cluster,
                                      TooFew too_few = TooFew::FailsOnEveryWorker);

/// Assignment::ByReplica: every worker reads the whole pipeline, with shards in place of hints that keep everything. `by` is
/// Hint if there are some, else Off. Calls no function: files are those that stages declare. The same errors as above,
/// except that there cannot be too few files; FILE still requires some where there are several workers.
LOCKSTEP_EXPORT ShardPlan plan_without_shards(const StagePtr& pipeline, AutoShardPolicy policy, int workers);

/// The policy that the dataset's options name; Auto if they name none.
LOCKSTEP_EXPORT AutoShardPolicy policy_of(const Stage& pipeline);

}  // namespace lockstep::data
