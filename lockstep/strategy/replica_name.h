#pragma once

#include <cstddef>
#include <string>

#include "lockstep/base/export.h"

namespace lockstep {
class Strategy;

namespace detail {

/// "replica 5": what errors and the log call replica `local` of this worker, counted over all workers.
LOCKSTEP_EXPORT std::string replica_name(const Strategy& strategy, std::size_t local);
/// The same of the strategy whose context this thread is in.
LOCKSTEP_EXPORT std::string replica_name(std::size_t local);

}  // namespace detail
}  // namespace lockstep
