#pragma once

#include <cstdint>
#include <exception>
#include <functional>
#include <optional>

#include "lockstep/data/distribute/distributed_input.h"
#include "lockstep/data/distribute/step_source.h"

// Whether all workers agree that there is a next step.
namespace lockstep::data {

/// A step that this worker has read, and a handle to wait for the other workers' reports.
struct OfferedStep {
  std::optional<InputStep> step;
  std::exception_ptr error;            ///< thrown while reading
  std::function<StepTotals()> totals;  ///< over all workers; none if this worker knows by itself
};

/// This worker's report about the step it read. `knows_empty_batches` is called only if it matters.
StepTotals totals_of(const OfferedStep& read, const ClusterShape& cluster,
                     const std::function<bool()>& knows_empty_batches);

struct StepVerdict {
  bool exists = false;
  bool is_stuck = false;  ///< a worker without data does not know the shape of its empty batches
  BatchRows rows;
};

/// `all`: the workers' totals; none if this worker knows them, or if the data is endless and not counted.
StepVerdict judge_step(const DistributedInput& input, const std::optional<InputStep>& step,
                       const std::optional<StepTotals>& all, bool partial_steps);

/// The error of a step that some workers could not read: this worker's own, or a peer's.
std::exception_ptr common_failure(const OfferedStep& read, const StepTotals& all, const ClusterShape& cluster,
                                  std::int64_t step);

}  // namespace lockstep::data
