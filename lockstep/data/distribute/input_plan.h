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

// Who reads what of a dataset that is distributed: decided once, before the first row is read.
namespace lockstep::data {

struct LOCKSTEP_EXPORT InputPlan {
  ClusterShape cluster;
  Assignment assignment = Assignment::ByReplica;
  AutoShardPolicy policy = AutoShardPolicy::Auto;
  std::int64_t global_batch_size = kUnknownBatchSize;
  GlobalSplit split;
  ShardPlan shards;           ///< how the workers share; not at all under ByReplica
  StagePtr stream = nullptr;  ///< under Assignment::TensorFlow: what the worker reads, dealt to its replicas in turn
  StagePtr everything = nullptr;  ///< where workers read different parts: the global batches without shards
  bool partial_steps = true;
  /// Whether rows of a source are cut though they were never batched: along their features, which is hardly meant. Not
  /// where elements may be batches of the user's own: from a generator, or a `map` of numbers or names.
  bool has_single_rows = false;
  Cardinality cardinality = Cardinality::unknown();  ///< of the dataset as given
  ElementSpec element_spec;                          ///< of what one replica gets

  /// Global batches, with the shards of the plan in it.
  const StagePtr& pipeline() const { return shards.pipeline; }
  /// What is read.
  const StagePtr& source() const { return stream ? stream : pipeline(); }
  /// How many steps a pass has, as far as that is known beforehand.
  Cardinality steps() const;
  std::unique_ptr<StepSource> make_source(const IterationContext& context) const;
  /// What must be the same for a saved position to make sense.
  std::string fingerprint() const;
};

/// Throws what `plan_shards` throws, or by replica `plan_without_shards`, and InvalidArgument for scalars, which have no rows
/// to share out, and for components that are known to have different numbers of rows; the same on every worker. Functions of
/// the pipeline are only called for Assignment::TensorFlow.
LOCKSTEP_EXPORT InputPlan plan_input(const StagePtr& dataset, AutoShardPolicy policy, Assignment assignment,
                                     const ClusterShape& cluster, TooFew too_few = TooFew::FailsOnEveryWorker);

/// A line per worker: "worker 1 of 3: files 1,4,7 (FILE)".
LOCKSTEP_EXPORT std::string to_string(const InputPlan& plan);

/// What the user should know about a plan of several workers. AUTO that found no files to share out: that every worker
/// computes rows which it throws away; nothing where rows of others are passed over (Assignment::ByReplica behind a
/// plain `batch`). HINT without a shard to fill in: that every worker gets every row. OFF or FILE by replica: that they
/// have no effect.
LOCKSTEP_EXPORT std::optional<std::string> fallback_warning(const InputPlan& plan);

/// The size of the batches of a dataset, as distributing sees it.
LOCKSTEP_EXPORT std::int64_t global_batch_size_of(const Stage& dataset);

/// Of the elements that a replica gets from a distributed dataset by TensorFlow's rules. It does not depend on how the
/// workers share: with a known global batch size it is that of the balanced stream. `partial_steps` of several workers leave
/// the first dimension open, as any batch may be empty.
LOCKSTEP_EXPORT ElementSpec distributed_spec(const ElementSpec& dataset, std::int64_t global_batch_size,
                                             const ClusterShape& cluster, bool partial_steps);

/// Whether a step in which only some replicas have data is completed with empty batches ("partial batch handling").
/// It is unless the dataset never ends, or all shapes are known in full and there is only one worker.
LOCKSTEP_EXPORT bool handles_partial_steps(const ElementSpec& dataset, bool is_infinite, int workers);

/// The global batch size if the spec alone tells it: a size, kUnknownBatchSize where components disagree, or
/// kAskStages where some first dimension is not known. Throws InvalidArgument for a scalar, which has no rows to share
/// out.
inline constexpr std::int64_t kAskStages = -2;
LOCKSTEP_EXPORT std::int64_t batch_size_by_spec(const ElementSpec& dataset);

/// For errors about datasets that cannot be cut into batches of replicas.
inline constexpr RowsHelp kHelpForDistribute{
    .no_rows = "call batch() before distribute(), or make per-replica batches in distribute_from_function",
    .unequal = "give all components the same first dimension, or make per-replica batches in distribute_from_function"};

}  // namespace lockstep::data
