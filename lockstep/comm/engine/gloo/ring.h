#pragma once

#include <memory>

#include "lockstep/comm/engine/tcp/channel.h"
#include "lockstep/comm/engine/tcp/mesh.h"

namespace lockstep::engine {

/// Connects Gloo's own pairs between all workers and reduces with its ring. Gloo trusts whoever connects to its ports
/// while the pairs are made, and learns of a worker's end later than our own connections do: it is there for those who
/// ask for it by name, and as a peer to measure against.
std::unique_ptr<RingReducer> make_gloo_ring(const MeshOptions& options, int channel, const MeshStore& store,
                                            Deadline deadline);

}  // namespace lockstep::engine
