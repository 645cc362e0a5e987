// Fails unless two replicas add up.
#include <ATen/ops/full.h>
#include <lockstep/lockstep.h>

namespace ls = lockstep;

int main() {
  ls::MirroredStrategy strategy({.devices = ls::cpus(2)});
  const auto sum = strategy.run([] {
    auto& replica = ls::get_replica_context();
    return replica.all_reduce(ls::ReduceOp::Sum, at::full({1}, replica.replica_id_in_sync_group() + 1));
  });
  return sum[0].item<double>() == 3 ? 0 : 1;
}
