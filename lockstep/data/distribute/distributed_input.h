#pragma once

#include <c10/core/Device.h>

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "lockstep/base/export.h"
#include "lockstep/data/distribute/input_plan.h"
#include "lockstep/data/distribute/signature.h"
#include "lockstep/data/stage.h"

namespace lockstep::data {

// ---- when replicas run out of data in different steps

/// Whether there is a step if `local_values` of `local_replicas` replicas got an element: all have data, or those
/// without get empty batches. `total_values` counts the replicas of all workers and is used only with partial steps.
inline bool has_step(bool partial_steps, int local_values, int local_replicas, std::int64_t total_values) {
  return partial_steps ? total_values > 0 : local_values == local_replicas;
}

/// What each worker reports about a step; the fields are summed over the workers.
struct StepTotals {
  std::int64_t values = 0;      ///< replicas that have data
  std::int64_t rows = 0;        ///< rows of their data
  std::int64_t unclear = 0;     ///< replicas whose components differ in their number of rows
  std::int64_t empty = 0;       ///< replicas without rows
  std::int64_t helpless = 0;    ///< workers without data that do not know the shape of their empty batches
  std::int64_t failed = 0;      ///< workers that could not read the step
  std::int64_t failed_ids = 0;  ///< sum of the ids of those workers: the id itself if there is one
};

/// How workers agree that the data has ended: with partial steps, every worker reports once per step how many replicas
/// have data. The returned function waits until all workers have reported; its destructor waits too if it was not
/// called.
using Agreement = std::function<std::function<StepTotals()>(const StepTotals& mine)>;
/// A single worker agrees with itself.
inline std::function<StepTotals()> agree_alone(const StepTotals& mine) {
  return [mine] { return mine; };
}

// ---- the input

/// A distributed dataset with the user's types erased, with all that iterating it needs.
struct LOCKSTEP_EXPORT DistributedInput {
  ClusterShape cluster;
  bool partial_steps = true;
  bool whole_steps = false;                          ///< the data ends if a replica of any worker has none
  Cardinality cardinality = Cardinality::unknown();  ///< number of elements of the dataset that is distributed
  Cardinality steps = Cardinality::unknown();        ///< steps per pass
  ElementSpec element_spec;
  std::string fingerprint;          ///< a saved position requires the same fingerprint
  std::vector<StagePtr> pipelines;  ///< the pipelines to read
  StagePtr everything = nullptr;    ///< if workers read different files: the whole dataset
  std::string plan;                 ///< which worker reads what, for people
  std::function<std::unique_ptr<StepSource>(const IterationContext&)> make_source;

  std::uint64_t job_seed = 0;
  int buffer_size = 1;
  std::vector<at::Device> devices = {};  ///< device of each local replica's elements; empty: they stay in place
  /// How workers agree on the end; none if every worker sees the same end by itself (Assignment::ByReplica).
  Agreement agreement = agree_alone;
  std::shared_ptr<std::atomic<std::uint64_t>> passes = std::make_shared<std::atomic<std::uint64_t>>(0);

  DistributedSpec spec() const;
  /// The stage whose position cannot be saved exactly, as far as known; see find_position_obstacle.
  std::optional<std::string> position_obstacle() const;
  /// Spec of the values of `next_as_optional`: any batch may be empty, unless the dataset is endless.
  DistributedSpec optional_spec() const;
};

/// Makes the input that a plan describes.
LOCKSTEP_EXPORT DistributedInput distributed_by_plan(const InputPlan& plan);
/// Per-replica batches from a function: one pipeline, or one per replica with PER_REPLICA. By replica, a last step in
/// which only some replicas have a batch counts; by TensorFlow's rule only if some shape is unknown.
LOCKSTEP_EXPORT DistributedInput distributed_pipelines(const std::vector<StagePtr>& pipelines,
                                                       const ClusterShape& cluster, bool one_for_each,
                                                       Assignment assignment = Assignment::ByReplica);

}  // namespace lockstep::data
