#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "lockstep/base/export.h"
#include "lockstep/data/distribute/input_options.h"
#include "lockstep/data/distribute/pipeline_node.h"
#include "lockstep/data/distribute/split.h"

// How the workers share the elements of a pipeline, by TensorFlow's rules: a pure function of its description.
namespace lockstep::data {

enum class ShardBy {
  Nothing,  ///< every worker reads everything
  Files,    ///< each worker reads the files (or other elements before a reader) that are its own
  Rows,     ///< each worker reads everything and keeps its own pieces: split first, then shard(workers, worker)
  Hint      ///< shards in the pipeline were filled in
};
LOCKSTEP_EXPORT std::string_view to_string(ShardBy by);  ///< "OFF", "FILE", "DATA", "HINT"

struct ShardPlan {
  ShardBy by = ShardBy::Nothing;
  PipelineNode pipeline;                  ///< with the shards of ShardBy::Files and Hint in it
  std::string unshardable = {};           ///< why there are no files to share out, where AUTO looked for them
  std::vector<std::string> removed = {};  ///< stages that were left out because sharing out makes them wrong
};

/// Who is told that there are elements, but fewer than shards.
enum class TooFew {
  FailsOnEveryWorker,
  FailsWhereSeen,  ///< as in TensorFlow: a shard that begins behind the end is empty and says nothing
};

/// Throws NotFound for FILE where there are no files, InvalidArgument where a shard is known to have fewer files or
/// elements than there are workers, FailedPrecondition for a shard that waits for numbers that the policy does not fill
/// in. The same on every worker: none of them waits for one that has failed. HINT without such a shard shares out
/// nothing.
///
///     plan_shards(describe("map < flat_map(reads files) < list_files"), AutoShardPolicy::Auto, {.workers = 3});
///     // FILE: map < flat_map < shard(3, 0) < list_files
LOCKSTEP_EXPORT ShardPlan plan_shards(const PipelineNode& pipeline, AutoShardPolicy policy, const ClusterShape& cluster,
                                      TooFew too_few = TooFew::FailsOnEveryWorker);

/// What one shard of a plan gives each worker a part of.
struct SharedOut {
  bool files = false;                                ///< names of files; else other elements of the pipeline
  std::optional<std::int64_t> count = std::nullopt;  ///< if known beforehand
};
/// In the order of the pipeline's inputs.
LOCKSTEP_EXPORT std::vector<SharedOut> shared_out(const PipelineNode& planned);

/// Whether a count of shards and an index make sense: InvalidArgument if not, FailedPrecondition for kShardHint.
LOCKSTEP_EXPORT void check_shard(std::int64_t shards, std::int64_t index);

}  // namespace lockstep::data
