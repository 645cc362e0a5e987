// lockstep run -n 2 ./two_workers
// lockstep run -n 2 ./two_workers ring

#include <ATen/ops/full.h>
#include <lockstep/cluster.h>
#include <lockstep/strategy/strategy.h>

#include <iostream>

int main(int argc, char**) {
  lockstep::MultiWorkerOptions options;
  if (argc > 1) options.communication.implementation = lockstep::Implementation::Ring;  // loads Gloo
  lockstep::MultiWorkerMirroredStrategy strategy(options);
  const auto ids =
      strategy.run([] { return at::full({}, lockstep::get_replica_context().replica_id_in_sync_group() + 1); });
  const auto sum = strategy.reduce(lockstep::ReduceOp::Sum, ids);
  if (strategy.is_chief())
    std::cout << "1 + 2 = " << sum.item<int>() << " on " << strategy.num_workers() << " workers\n";
  return sum.item<int>() == 3 ? 0 : 1;
}
