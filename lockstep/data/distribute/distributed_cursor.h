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

/// One pass over a distributed dataset, with the user's types erased. Nothing is started before it is first asked.
class LOCKSTEP_EXPORT DistributedCursor {
 public:
  /// The pass that `options` name, else the next one.
  explicit DistributedCursor(DistributedInputPtr input, const PassOptions& options = {});
  DistributedCursor(DistributedCursor&&) noexcept;
  DistributedCursor& operator=(DistributedCursor&&) noexcept;
  ~DistributedCursor();

  using Values = std::vector<Element>;  ///< one per local replica

  /// The values of the next step; nothing at the end. Where partial steps are not handled, a step in which only some
  /// replicas have data is none. After an error the next call goes on behind the step that failed; with several
  /// workers, who would be out of step, it throws the same error again. If a worker has no data and cannot tell what
  /// its empty batches should look like, all workers throw in that step.
  std::optional<Values> next();
  /// The same with partial steps always handled, unless the dataset is endless.
  std::optional<Values> next_as_optional();

  /// Returns when this worker's part of the next step could be had without waiting, or after `limit`; whether it could. True where
  /// nothing is read ahead. The reading goes on meanwhile, and a position does not count what was not taken.
  bool wait_for(std::chrono::milliseconds limit);

  /// Of the last step, if there are several workers.
  const BatchRows& batch_rows() const;

  /// Steps taken so far; prefetched ones do not count. FailedPrecondition names a stage that cannot promise it.
  IteratorState state() const;
  /// Goes on behind the steps of a saved state; InvalidArgument if it is of another dataset.
  void load_state(const IteratorState& state);
  /// The same, and the next pass is the one behind it, whatever passes were begun since the state was taken.
  void go_back_to(const IteratorState& state);
  /// Throws what `load_state` would throw for the state of another dataset.
  void check_state(const IteratorState& state) const;

  /// What is known about the elements of `next`.
  DistributedSpec spec() const;
  DistributedSpec optional_spec() const;  ///< of what `next_as_optional` gives

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

/// The same input for iterators of TensorFlow 1, which end where some replica of some worker has no data.
LOCKSTEP_EXPORT DistributedInputPtr only_whole_steps(const DistributedInputPtr& input);

/// Throws InvalidArgument inside a replica: distributed values are taken outside of them.
LOCKSTEP_EXPORT void require_outside_replicas(const char* operation);

/// Throws OutOfRange: there is no next step.
[[noreturn]] LOCKSTEP_EXPORT void throw_no_more_data();

}  // namespace lockstep::data
