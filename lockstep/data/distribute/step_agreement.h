#pragma once

#include <cstdint>
#include <exception>
#include <functional>
#include <optional>

#include "lockstep/data/distribute/distributed_input.h"
#include "lockstep/data/distribute/step_source.h"

// Whether there is a next step, as all workers see it.
namespace lockstep::data {

/// A step that this worker has read, and what it waits for to know what the others have.
struct OfferedStep {
  std::optional<InputStep> step;
  std::exception_ptr error;            ///< thrown while reading
  std::function<StepTotals()> totals;  ///< of all workers; none if this worker knows by itself
};

/// What a worker reports of the step it read. `knows_empty_batches` is asked only if that matters.
StepTotals totals_of(const OfferedStep& read, const ClusterShape& cluster,
                     const std::function<bool()>& knows_empty_batches);

struct StepVerdict {
  bool exists = false;
  bool is_stuck = false;  ///< a worker without data does not know what its empty batches should look like
  BatchRows rows;
};

/// `all`: the workers' totals; none if this worker knows them, or the data is endless and nobody counts.
StepVerdict judge_step(const DistributedInput& input, const std::optional<InputStep>& step,
                       const std::optional<StepTotals>& all, bool partial_steps);

/// The error of a step that some workers could not read: this worker's own, or that of a peer.
std::exception_ptr common_failure(const OfferedStep& read, const StepTotals& all, const ClusterShape& cluster,
                                  std::int64_t step);

}  // namespace lockstep::data
