#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "lockstep/base/export.h"
#include "lockstep/data/distribute/input_options.h"
#include "lockstep/data/distribute/split.h"
#include "lockstep/data/distribute/step_source.h"
#include "lockstep/data/distribute/worker_shards.h"
#include "lockstep/data/element_spec.h"
#include "lockstep/data/stage.h"

// Which worker reads what of a distributed dataset: decided once, before the first row is read.
namespace lockstep::data {

struct LOCKSTEP_EXPORT InputPlan {
  ClusterShape cluster;
  Assignment assignment = Assignment::ByReplica;
  AutoShardPolicy policy = AutoShardPolicy::Auto;
  std::int64_t global_batch_size = kUnknownBatchSize;
  GlobalSplit split;
  ShardPlan shards;           ///< how the workers share; nothing is shared under ByReplica
  StagePtr stream = nullptr;  ///< under Assignment::TensorFlow: the worker's elements, dealt to its replicas in turn
  StagePtr everything = nullptr;  ///< if workers read different parts: the global batches without shards
  bool partial_steps = true;
  /// Whether rows of a source are cut although they were never batched: along their features, which is hardly intended.
  /// False if elements may be the user's own batches: from a generator, or a `map` of numbers or names.
  bool has_single_rows = false;
  Cardinality cardinality = Cardinality::unknown();  ///< cardinality of the dataset as given
  ElementSpec element_spec;                          ///< spec of one replica's elements

  /// Global batches, with the plan's shards in the pipeline.
  const StagePtr& pipeline() const { return shards.pipeline; }
  /// The pipeline to read.
  const StagePtr& source() const { return stream ? stream : pipeline(); }
  /// How many steps a pass has, as far as known beforehand.
  Cardinality steps() const;
  std::unique_ptr<StepSource> make_source(const IterationContext& context) const;
  /// Identifies the plan: a saved position is valid only for an equal fingerprint.
  std::string fingerprint() const;
};

/// Throws what `plan_shards` throws (by replica: `plan_without_shards`), and InvalidArgument for scalars, which have no
/// rows to share, and for components known to have different numbers of rows; the same on every worker. Calls functions
/// of the pipeline only for Assignment::TensorFlow.
LOCKSTEP_EXPORT InputPlan plan_input(const StagePtr& dataset, AutoShardPolicy policy, Assignment assignment,
                                     const ClusterShape& cluster, TooFew too_few = TooFew::FailsOnEveryWorker);

/// A line per worker: "worker 1 of 3: files 1,4,7 (FILE)".
LOCKSTEP_EXPORT std::string to_string(const InputPlan& plan);

/// A warning about the plan if there are several workers. AUTO without files: every worker computes rows that it throws
/// away; none if other workers' rows are skipped unread (Assignment::ByReplica after a plain `batch`). HINT without a
/// shard to fill in: every worker gets every row. OFF or FILE by replica: no effect.
LOCKSTEP_EXPORT std::optional<std::string> fallback_warning(const InputPlan& plan);

/// The batch size of a dataset, as distributing sees it.
LOCKSTEP_EXPORT std::int64_t global_batch_size_of(const Stage& dataset);

/// Spec of a replica's elements by TensorFlow's rules. It does not depend on how the workers share: with a known global
/// batch size it is the balanced stream's. `partial_steps` with several workers leaves the first dimension open, as any
/// batch may be empty.
LOCKSTEP_EXPORT ElementSpec distributed_spec(const ElementSpec& dataset, std::int64_t global_batch_size,
                                             const ClusterShape& cluster, bool partial_steps);

/// Whether a step in which only some replicas have data is completed with empty batches ("partial batch handling"):
/// yes, unless the dataset is endless, or all shapes are fully known and there is only one worker.
LOCKSTEP_EXPORT bool handles_partial_steps(const ElementSpec& dataset, bool is_infinite, int workers);

/// The global batch size if the spec determines it: a size, kUnknownBatchSize if components disagree, or kAskStages if
/// some first dimension is unknown. Throws InvalidArgument for a scalar, which has no rows to share.
inline constexpr std::int64_t kAskStages = -2;
LOCKSTEP_EXPORT std::int64_t batch_size_by_spec(const ElementSpec& dataset);

/// Help for errors about datasets that cannot be cut into batches of replicas.
inline constexpr RowsHelp kHelpForDistribute{
    .no_rows = "call batch() before distribute(), or make per-replica batches in distribute_from_function",
    .unequal = "give all components the same first dimension, or make per-replica batches in distribute_from_function"};

}  // namespace lockstep::data
