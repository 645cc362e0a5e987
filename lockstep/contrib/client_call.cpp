#include "lockstep/contrib/client_call.h"

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "lockstep/base/error.h"
#include "lockstep/base/text.h"
#include "lockstep/base/vocabulary.h"
#include "lockstep/strategy/call_place.h"
#include "lockstep/strategy/devices.h"
#include "lockstep/strategy/replica_random.h"
#include "lockstep/strategy/values_of_all.h"
#include "lockstep/values/type_name.h"

namespace lockstep::contrib::detail {

struct ClientRandom::Stream {
  ReplicaGenerators generators;
  GeneratorScope scope{&generators};
};

ClientRandom::ClientRandom(const Strategy& core, int call, std::size_t place)
    : stream_(core.num_replicas_in_sync() == 1
                  ? nullptr  // the plain program
                  : new Stream{make_generators(torch_device(parse_device(core.devices()[0])),
                                               derived_seed(derived_seed(core.seed(), "call of a client", call),
                                                            "place", static_cast<int>(place)))}) {}

ClientRandom::~ClientRandom() = default;

void ClientCall::throw_together(const std::exception_ptr& mine) const {
  if (core_.num_workers() > 1) {
    // Lambdas are distinguished at the end of their names. The whole name is compared, but only its beginning is shown.
    const std::string name = type_name(function_);
    const std::string call =
        str(operation_, " with ..", name.substr(name.size() - std::min<std::size_t>(name.size(), 24)), " of ", name);
    const lockstep::detail::CallPlace place(call);
    std::string said;
    if (mine) {
      try {
        std::rethrow_exception(mine);
      } catch (const std::exception& e) {
        said = str("on worker ", core_.worker_id(), ": ", verbatim(e.what()));
      } catch (...) {
        said = str("on worker ", core_.worker_id(), ": an exception of an unknown type");
      }
    }
    std::vector<std::string> texts(static_cast<std::size_t>(core_.num_local_replicas()));
    texts[0] = std::move(said);
    texts = lockstep::detail::of_all_replicas(core_, texts);
    for (const std::string& other : texts) {
      if (mine || other.empty()) continue;
      throw Unavailable(errors::kPeerFailed, {.what = str("the function given to ", operation_, " failed ", other),
                                              .where = operation_,
                                              .help = "see its error there; the towers of this worker are unharmed"});
    }
  }
  if (mine) std::rethrow_exception(mine);
}

}  // namespace lockstep::contrib::detail
