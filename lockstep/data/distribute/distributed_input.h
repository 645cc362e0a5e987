#pragma once

#include <ATen/core/Tensor.h>

#include <atomic>
#include <cstdint>
#include <exception>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "lockstep/data/distribute/end_of_data.h"
#include "lockstep/data/distribute/input_plan.h"
#include "lockstep/data/distribute/read_ahead.h"
#include "lockstep/data/distribute/signature.h"
#include "lockstep/data/distribute/step_source.h"
#include "lockstep/data/stage.h"

// A distributed dataset and its iterator with the user's types erased.
namespace lockstep::data {

/// Everything that iterating a distributed dataset needs.
struct LOCKSTEP_EXPORT DistributedInput {
  ClusterShape cluster;
  bool partial_steps = true;
  Cardinality cardinality = Cardinality::unknown();  ///< of the dataset that is distributed
  Cardinality steps = Cardinality::unknown();        ///< of a pass
  ElementSpec element_spec;
  std::string fingerprint;            ///< what must be equal for a saved position to fit
  std::vector<StagePtr> pipelines;    ///< what is read
  StagePtr everything = nullptr;      ///< where workers have files of their own: what all read together
  std::function<std::string()> plan;  ///< who reads what, for people; may look at files
  std::function<std::unique_ptr<StepSource>(const IterationContext&)> make_source;

  std::uint64_t job_seed = 0;
  int buffer_size = 1;
  std::vector<at::Device> devices = {};  ///< where each local replica's elements go; none: they stay where they are
  /// How workers agree on the end; none where every worker sees the same end by itself (Assignment::ByReplica).
  std::shared_ptr<EndOfDataAgreement> agreement = std::make_shared<LocalAgreement>();
  std::shared_ptr<std::atomic<std::uint64_t>> passes = std::make_shared<std::atomic<std::uint64_t>>(0);

  DistributedSpec spec() const;
  /// The stage that cannot promise a position, as far as is known by now; see find_position_obstacle.
  std::optional<std::string> position_obstacle() const;
  /// Of what `next_as_optional` gives: any batch may be an empty one, unless the dataset is endless.
  DistributedSpec optional_spec() const;
};
using DistributedInputPtr = std::shared_ptr<const DistributedInput>;

/// A dataset by its plan.
LOCKSTEP_EXPORT DistributedInput distributed_by_plan(const InputPlan& plan);
/// Per-replica batches from a function: one pipeline, or with PER_REPLICA one for each replica.
LOCKSTEP_EXPORT DistributedInput distributed_pipelines(const std::vector<StagePtr>& pipelines,
                                                       const ClusterShape& cluster, bool one_for_each);

/// One pass over a distributed dataset.
class LOCKSTEP_EXPORT DistributedCursor {
 public:
  /// Starts the next pass, or the one that `options` name.
  explicit DistributedCursor(DistributedInputPtr input, const PassOptions& options = {});
  /// Goes on behind the steps of a saved state; InvalidArgument if it is of another dataset.
  DistributedCursor(DistributedInputPtr input, const IteratorState& state, std::shared_ptr<StageMeter> meter = nullptr);

  using Values = std::vector<Element>;  ///< one per local replica

  /// The values of the next step; nothing at the end. Where partial steps are not handled, a step in which only some
  /// replicas have data is none. After an error the next call goes on behind the step that failed; with several
  /// workers, who would be out of step, it throws the same error again. If a worker has no data and cannot tell what
  /// its empty batches should look like, all workers throw in that step.
  std::optional<Values> next();
  /// The same with partial steps always handled, unless the dataset is endless.
  std::optional<Values> next_as_optional();

  /// Steps taken so far; prefetched ones do not count. FailedPrecondition names a stage that cannot promise it.
  IteratorState save() const;
  const DistributedInput& input() const { return *input_; }

 private:
  DistributedCursor(DistributedInputPtr input, IterationContext context, std::int64_t steps);

  std::optional<Values> read(bool partial_steps);
  std::optional<InputStep> read_step();
  bool is_complete(const std::optional<InputStep>& step, bool partial_steps);
  bool knows_empty_batches();
  [[noreturn]] void throw_unknown_batches() const;
  Element first_without_rows();

  DistributedInputPtr input_;
  IterationContext context_;
  std::int64_t steps_ = 0;
  bool ended_ = false;
  bool stuck_ = false;                 ///< some worker does not know what its empty batches should look like
  Element seen_;                       ///< some element without its rows, for dummies where the spec says too little
  std::exception_ptr unseen_because_;  ///< what every element that was looked at for that has thrown
  std::shared_ptr<StageCounters> counters_;
  std::unique_ptr<ReadAhead<InputStep>> source_;
};

/// Throws OutOfRange: there is no next step.
[[noreturn]] LOCKSTEP_EXPORT void throw_no_more_data();
/// Throws if the calling thread is inside a replica: distributed values are taken outside.
LOCKSTEP_EXPORT void require_outside_replicas(const char* operation);

}  // namespace lockstep::data
