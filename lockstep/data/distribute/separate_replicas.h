#pragma once

#include "lockstep/base/export.h"
#include "lockstep/data/distribute/step_source.h"

namespace lockstep::data {

/// Replicas run on threads of their own and may write into what they are given: makes every tensor of a step one of its
/// own, outside of any graph, and copies those of different replicas that have memory in common (a function may return
/// the same tensor for every element).
LOCKSTEP_EXPORT void separate_replicas(InputStep& step);

}  // namespace lockstep::data
