#pragma once

#include <vector>

#include "lockstep/comm/engine/engine.h"
#include "lockstep/comm/engine/tcp/link.h"

namespace lockstep::engine {

/// Connects every worker with every other one, once per channel: connections[channel][rank], empty for the own rank.
///
/// The listener is open only meanwhile, at one address and port. Whoever connects must present, in one message of fixed
/// size, a random number that the listening worker left in the store for this engine alone, and gets the one of its own
/// back: port scanners, strangers and workers of an earlier run are dropped and cost a worker nothing. L105 names the
/// workers that did not come before the deadline.
std::vector<std::vector<Connection>> connect_mesh(const EngineOptions& options);

}  // namespace lockstep::engine
