#pragma once

#include "lockstep/base/export.h"

namespace lockstep::detail {

struct OptimizerCore;

/// Whether gradients wait for the rest of their window of `set_accumulate`: the optimizer's state cannot be captured
/// then. The same on all workers. Outside of run.
LOCKSTEP_EXPORT bool has_open_window(const OptimizerCore& core);

}  // namespace lockstep::detail
