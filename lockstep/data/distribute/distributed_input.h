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

// ---- what happens when the replicas run out of data, not all in the same step

/// Whether there is a step if `local_values` of `local_replicas` replicas got an element: all have data, or those
/// without get dummies. `total_values`: of the replicas of all workers; only looked at where partial steps are handled.
inline bool has_step(bool partial_steps, int local_values, int local_replicas, std::int64_t total_values) {
  return partial_steps ? total_values > 0 : local_values == local_replicas;
}

/// What the workers tell each other about a step: numbers that are added up.
struct StepTotals {
  std::int64_t values = 0;      ///< replicas that have data
  std::int64_t rows = 0;        ///< of their data
  std::int64_t unclear = 0;     ///< replicas whose data has no one number of rows
  std::int64_t empty = 0;       ///< replicas without rows
  std::int64_t helpless = 0;    ///< workers without data that do not know what their empty batches should look like
  std::int64_t failed = 0;      ///< workers that could not read the step
  std::int64_t failed_ids = 0;  ///< of these, added up: if there is one, which
};

/// How workers agree that the data has ended: if partial steps are handled, every worker tells once per step what its
/// replicas have. What is returned waits until all workers have told, if it is called, and at the latest when it goes.
using Agreement = std::function<std::function<StepTotals()>(const StepTotals& mine)>;
/// One worker agrees with itself.
inline std::function<StepTotals()> agree_alone(const StepTotals& mine) {
  return [mine] { return mine; };
}

// ---- what is read

/// A distributed dataset with the user's types erased: everything that iterating it needs.
struct LOCKSTEP_EXPORT DistributedInput {
  ClusterShape cluster;
  bool partial_steps = true;
  bool whole_steps = false;                          ///< a step in which a replica of any worker has no data is none
  Cardinality cardinality = Cardinality::unknown();  ///< of the dataset that is distributed
  Cardinality steps = Cardinality::unknown();        ///< of a pass
  ElementSpec element_spec;
  std::string fingerprint;          ///< what must be equal for a saved position to fit
  std::vector<StagePtr> pipelines;  ///< what is read
  StagePtr everything = nullptr;    ///< where workers have files of their own: what all read together
  std::string plan;                 ///< who reads what, for people
  std::function<std::unique_ptr<StepSource>(const IterationContext&)> make_source;

  std::uint64_t job_seed = 0;
  int buffer_size = 1;
  std::vector<at::Device> devices = {};  ///< where each local replica's elements go; none: they stay where they are
  /// How workers agree on the end; none where every worker sees the same end by itself (Assignment::ByReplica).
  Agreement agreement = agree_alone;
  std::shared_ptr<std::atomic<std::uint64_t>> passes = std::make_shared<std::atomic<std::uint64_t>>(0);

  DistributedSpec spec() const;
  /// The stage that cannot promise a position, as far as is known by now; see find_position_obstacle.
  std::optional<std::string> position_obstacle() const;
  /// Of what `next_as_optional` gives: any batch may be an empty one, unless the dataset is endless.
  DistributedSpec optional_spec() const;
};

/// A dataset by its plan.
LOCKSTEP_EXPORT DistributedInput distributed_by_plan(const InputPlan& plan);
/// Per-replica batches from a function: one pipeline, or with PER_REPLICA one for each replica. By replica, a last step
/// in which only some replicas have a batch counts; by TensorFlow's rule only if shapes are not fully known.
LOCKSTEP_EXPORT DistributedInput distributed_pipelines(const std::vector<StagePtr>& pipelines,
                                                       const ClusterShape& cluster, bool one_for_each,
                                                       Assignment assignment = Assignment::ByReplica);

}  // namespace lockstep::data
