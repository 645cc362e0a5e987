#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <vector>

#include "lockstep/data/distribute/distributed_cursor.h"
#include "lockstep/data/distribute/distributed_input.h"
#include "tests/golden_input/cases.h"

// Workers of a cluster as threads, without a network.
namespace lockstep::golden_input {

/// The outcome on one worker.
struct WorkerRun {
  json steps = json::array();  ///< [step][local replica]
  std::optional<json> error;   ///< the error that ended it
};

/// Reads the distributed dataset of every worker to its end, or up to `max_steps` steps, the workers agreeing on each
/// step. A worker that fails leaves the others alone.
std::vector<WorkerRun> run_workers(const std::vector<data::DistributedInput>& inputs, std::optional<int> max_steps);

}  // namespace lockstep::golden_input
