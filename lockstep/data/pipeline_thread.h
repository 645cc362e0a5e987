#pragma once

#include "lockstep/base/export.h"

namespace lockstep::data {

/// What every thread of a pipeline does first: it has a name, computes with one intra-op thread (so that results do not
/// depend on how many threads a pipeline has) and without gradients. Threads of the program are left as they are.
LOCKSTEP_EXPORT void prepare_pipeline_thread(const char* name);

}  // namespace lockstep::data
