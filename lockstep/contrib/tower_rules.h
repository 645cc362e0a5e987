#pragma once

#include "lockstep/strategy/strategy.h"

namespace lockstep::contrib {
class DistributionStrategy;
}

// One client drives the towers of all workers, as in TensorFlow 1.11.
namespace lockstep::contrib::detail {

/// Makes `client` the one that drives `core`, whose variables follow the rules of towers from now on.
void set_client(Strategy& core, DistributionStrategy& client);
/// Null: `core` is a strategy of the main API.
DistributionStrategy* client_of(const Strategy& core);

}  // namespace lockstep::contrib::detail
