#pragma once

#include <chrono>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "lockstep/base/export.h"
#include "lockstep/data/cardinality.h"
#include "lockstep/data/distribute/signature.h"
#include "lockstep/data/element.h"
#include "lockstep/data/iterator_state.h"
#include "lockstep/values/per_replica.h"

namespace lockstep {
class Stateful;  // strategy/snapshot.h
}

namespace lockstep::data {

struct DistributedInput;
using DistributedInputPtr = std::shared_ptr<const DistributedInput>;  ///< a distributed dataset, without its type

/// One pass over a distributed dataset, with the user's types erased. Starts nothing before the first read.
class LOCKSTEP_EXPORT DistributedCursor {
 public:
  /// The pass given by `options`, by default the next one.
  explicit DistributedCursor(DistributedInputPtr input, const PassOptions& options = {});
  DistributedCursor(DistributedCursor&&) noexcept;
  DistributedCursor& operator=(DistributedCursor&&) noexcept;
  ~DistributedCursor();

  using Values = std::vector<Element>;  ///< one per local replica

  /// The values of the next step; nothing at the end. Unless partial steps are handled, a step in which only some
  /// replicas have data is the end. After an error the next call continues after the failed step; with several workers,
  /// which would get out of step, it throws the same error again. If a worker has no data and does not know the shape
  /// of its empty batches, all workers throw in that step.
  std::optional<Values> next();
  /// The same with partial steps always handled, unless the dataset is endless.
  std::optional<Values> next_as_optional();

  /// Waits until this worker's part of the next step is ready, at most `limit`; returns whether it is. Always true if
  /// nothing is read ahead. Reading continues meanwhile; a position counts only steps that were taken.
  bool wait_for(std::chrono::milliseconds limit);

  /// Row counts of the last step, if there are several workers.
  const BatchRows& batch_rows() const;

  /// Steps taken so far; prefetched ones do not count. FailedPrecondition names a stage whose position cannot be saved
  /// exactly.
  IteratorState state() const;
  /// Continues after the steps of a saved state; InvalidArgument if it belongs to another dataset.
  void load_state(const IteratorState& state);
  /// The same, and the next pass follows this one, whatever passes began since the state was taken.
  void go_back_to(const IteratorState& state);
  /// Throws what `load_state` would throw for the state of another dataset.
  void check_state(const IteratorState& state) const;

  /// What is known about the elements of `next`.
  DistributedSpec spec() const;
  DistributedSpec optional_spec() const;  ///< spec of the values of `next_as_optional`

 private:
  class Impl;
  std::unique_ptr<Impl> impl_;
};

/// The position of an iterator as a part of a snapshot. The cursor must outlive the result.
LOCKSTEP_EXPORT std::shared_ptr<Stateful> state_of_cursor(DistributedCursor& cursor);

/// What is known about a distributed dataset.
LOCKSTEP_EXPORT DistributedSpec spec_of(const DistributedInput& input);
LOCKSTEP_EXPORT Cardinality steps_of(const DistributedInput& input);
LOCKSTEP_EXPORT bool handles_partial_steps(const DistributedInput& input);
LOCKSTEP_EXPORT const std::string& plan_of(const DistributedInput& input);
LOCKSTEP_EXPORT std::optional<std::string> position_obstacle_of(const DistributedInput& input);

/// The same input for TensorFlow 1 iterators, which end as soon as any replica of any worker has no data.
LOCKSTEP_EXPORT DistributedInputPtr only_whole_steps(const DistributedInputPtr& input);

/// Throws InvalidArgument inside a replica: distributed values are taken outside `run`.
LOCKSTEP_EXPORT void require_outside_replicas(const char* operation);

/// Throws OutOfRange: there is no next step.
[[noreturn]] LOCKSTEP_EXPORT void throw_no_more_data();

}  // namespace lockstep::data
