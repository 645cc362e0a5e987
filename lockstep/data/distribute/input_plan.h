#pragma once

#include <optional>
#include <string>
#include <vector>

#include "lockstep/data/distribute/batch_tally.h"
#include "lockstep/data/distribute/distributed_spec.h"
#include "lockstep/data/distribute/shard_plan.h"
#include "lockstep/data/distribute/split_stages.h"
#include "lockstep/data/distribute/step_source.h"
#include "lockstep/data/stage.h"

// Who reads what of a dataset that is distributed: decided once, before the first row is read.
namespace lockstep::data {

struct LOCKSTEP_EXPORT InputPlan {
  ClusterShape cluster;
  Assignment assignment = Assignment::ByReplica;
  AutoShardPolicy policy = AutoShardPolicy::Auto;
  std::int64_t global_batch_size = kUnknownBatchSize;
  GlobalSplit split;
  ShardPlan shards;   ///< how the workers share; of one worker under ByReplica
  StagePtr pipeline;  ///< global batches, with the shards of the plan in it
  StagePtr stream;    ///< under Assignment::TensorFlow: what the worker reads, an element per replica in turn
  StagePtr everything = nullptr;  ///< where workers read different parts: the global batches without shards
  bool partial_steps = true;
  Cardinality cardinality = Cardinality::unknown();  ///< of the dataset as given
  ElementSpec element_spec;                          ///< of what one replica gets

  /// Whether all workers see one stream of global batches, of which each takes its pieces.
  bool is_one_stream() const { return assignment == Assignment::ByReplica || cluster.workers == 1; }
  /// How many steps a pass has, as far as that is known beforehand.
  Cardinality steps() const;
  std::unique_ptr<StepSource> make_source(const IterationContext& context) const;
  /// What must be the same for a saved position to make sense.
  std::string fingerprint() const;
};

/// Throws what `plan_shards` throws, and InvalidArgument for scalars, which have no rows to share out, and for
/// components that are known to have different numbers of rows; the same on every worker. Under Assignment::ByReplica
/// no files are shared out, so there cannot be too few of them; FILE still wants some where there are several workers.
LOCKSTEP_EXPORT InputPlan plan_input(const StagePtr& dataset, AutoShardPolicy policy, Assignment assignment,
                                     const ClusterShape& cluster, TooFew too_few = TooFew::FailsOnEveryWorker);

/// A line per worker: "worker 1 of 3: files 1,4,7 (FILE), 4,096 rows". Rows of files are counted for that where it does
/// not take long.
LOCKSTEP_EXPORT std::string to_string(const InputPlan& plan);

/// The rows of these batches that one worker gets, by a plan that gives it pieces of every step.
LOCKSTEP_EXPORT Cardinality rows_of_worker(const BatchTally& batches, const GlobalSplit& split,
                                           const ClusterShape& cluster, Assignment assignment);

/// "4,096".
LOCKSTEP_EXPORT std::string with_thousands(std::int64_t number);

/// What the user should know about a plan of several workers. AUTO that found no files to share out: that every worker
/// computes rows which it throws away; nothing where rows of others are passed over (Assignment::ByReplica behind a
/// plain `batch`). HINT without a shard to fill in: that every worker gets every row.
LOCKSTEP_EXPORT std::optional<std::string> fallback_warning(const InputPlan& plan);

/// The shapes of the elements as far as they are known; nothing known counts as one component of unknown shape.
LOCKSTEP_EXPORT std::vector<StaticShape> static_shapes(const ElementSpec& spec);

/// The size of the batches of a dataset, as distributing sees it.
LOCKSTEP_EXPORT std::int64_t global_batch_size_of(const Stage& dataset, const PipelineNode& description);

}  // namespace lockstep::data
