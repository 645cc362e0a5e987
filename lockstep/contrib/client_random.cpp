#include "lockstep/contrib/client_random.h"

#include "lockstep/strategy/devices.h"
#include "lockstep/strategy/replica_random.h"

namespace lockstep::contrib::detail {

struct ClientRandom::Stream {
  ReplicaGenerators generators;
  GeneratorScope scope{&generators};
};

ClientRandom::ClientRandom(const Strategy& core, int call, std::size_t place)
    : stream_(new Stream{make_generators(
          torch_device(parse_device(core.devices()[0])),
          derived_seed(derived_seed(core.seed(), "call of a client", call), "place", static_cast<int>(place)))}) {}

ClientRandom::~ClientRandom() = default;

}  // namespace lockstep::contrib::detail
