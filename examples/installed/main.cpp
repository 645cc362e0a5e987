#include <ATen/ops/full.h>
#include <lockstep/strategy/mirrored_strategy.h>
#include <lockstep/version.h>

#include <iostream>

int main() {
  lockstep::MirroredStrategy strategy({.devices = lockstep::cpus(2)});
  const auto ids =
      strategy.run([] { return at::full({}, lockstep::get_replica_context().replica_id_in_sync_group() + 1); });
  const auto sum = strategy.reduce(lockstep::ReduceOp::Sum, ids);
  std::cout << "Lockstep " << LOCKSTEP_VERSION << ": 1 + 2 = " << sum.item<int>() << " on "
            << strategy.num_replicas_in_sync() << " replicas\n";
  return sum.item<int>() == 3 ? 0 : 1;
}
