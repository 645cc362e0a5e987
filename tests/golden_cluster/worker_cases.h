#pragma once

#include "lockstep/strategy/multi_worker_strategy.h"
#include "tests/golden/case.h"

namespace lockstep::golden_cluster {

/// The outcome of a case of the area multi_worker on this worker: an entry of expect["workers"], or {"error": kind,
/// "text"}. UnknownForm if the program does not understand the case.
golden::json run_as_worker(MultiWorkerMirroredStrategy& strategy, const golden::Case& given);

}  // namespace lockstep::golden_cluster
