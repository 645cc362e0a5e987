#pragma once

#include <vector>

#include "report.h"

namespace lockstep::bench {

/// The cost of run and of meetings: `run`, `all_reduce`, `merge_call`, and one replica compared with no strategy at
/// all. Returns the goals.
std::vector<Goal> register_core_benchmarks();

}  // namespace lockstep::bench
