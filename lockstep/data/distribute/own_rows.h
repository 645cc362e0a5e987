#pragma once

#include <memory>

#include "lockstep/data/distribute/step_source.h"

namespace lockstep::data {

/// Whether the rows of batches can be written straight into the worker's pieces without making the batches: the
/// pipeline ends in a plain `batch`. Several workers then need not compute each other's rows. One worker does this if
/// it is no slower than making whole batches and cutting them.
LOCKSTEP_EXPORT bool can_read_own_rows(const Stage& pipeline, const GlobalSplit& split,
                                       const IterationContext& context);

/// The worker's own pieces of a pipeline for which `can_read_own_rows`.
LOCKSTEP_EXPORT std::unique_ptr<StepSource> read_own_rows(const Stage& pipeline, const GlobalSplit& split,
                                                          const IterationContext& context);

}  // namespace lockstep::data
