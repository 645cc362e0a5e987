#pragma once

#include <atomic>
#include <cstdint>
#include <memory>

namespace lockstep {

class Strategy;

/// How many runs of a strategy have thrown so far. What keeps something from one run to the next looks at it to notice
/// that a run was cut short.
std::shared_ptr<const std::atomic<std::uint64_t>> failed_runs(const Strategy& strategy);

}  // namespace lockstep
