#pragma once

#include <optional>

#include "lockstep/strategy/snapshot.h"

namespace lockstep::train::detail {

/// The chief's snapshot, on every worker; the others' are ignored. Outside of run; every worker must call it.
std::optional<Snapshot> chiefs_snapshot(const Strategy& strategy, std::optional<Snapshot> mine);

}  // namespace lockstep::train::detail
