#pragma once

#include <vector>

#include "report.h"

namespace lockstep::bench {

/// What running and meeting cost: `run`, `all_reduce`, `merge_call`, and one replica against no strategy at all.
/// Returns what they are meant to reach.
std::vector<Goal> register_core_benchmarks();

}  // namespace lockstep::bench
