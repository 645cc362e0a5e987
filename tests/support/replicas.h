#pragma once

#include "lockstep/strategy/mirrored_strategy.h"

namespace lockstep {

/// The options of a strategy with this many CPU replicas.
inline MirroredOptions on_cpus(int replicas) { return {.devices = cpus(replicas)}; }

/// The calling replica's id.
inline int my_id() { return get_replica_context().replica_id_in_sync_group(); }

}  // namespace lockstep
