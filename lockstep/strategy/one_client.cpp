#include "lockstep/strategy/one_client.h"

#include "lockstep/strategy/detail/strategy_local.h"

namespace lockstep::detail {

struct OneClient {
  void* client = nullptr;
};

void set_one_client(Strategy& strategy, void* client) { strategy_local<OneClient>(strategy).client = client; }

void* one_client(const Strategy& strategy) {
  const OneClient* const found = find_strategy_local<OneClient>(strategy);
  return found == nullptr ? nullptr : found->client;
}

bool is_client_of_several_workers(const Strategy& strategy) {
  return strategy.num_workers() > 1 && one_client(strategy) != nullptr;
}

}  // namespace lockstep::detail
