#include "lockstep/strategy/replica_name.h"

#include "lockstep/base/text.h"
#include "lockstep/strategy/context.h"
#include "lockstep/strategy/strategy.h"

namespace lockstep::detail {

std::string replica_name(const Strategy& strategy, std::size_t local) {
  const int first = strategy.worker_id() * strategy.num_local_replicas();
  return str("replica ", static_cast<std::size_t>(first) + local);
}

std::string replica_name(std::size_t local) { return replica_name(get_strategy(), local); }

}  // namespace lockstep::detail
