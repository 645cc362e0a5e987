// Metrics as variables: every replica counts for itself, and reading outside of replicas adds up the counts.

#include <lockstep/lockstep.h>
#include <torch/types.h>

#include <iostream>

namespace ls = lockstep;

int main() {
  torch::manual_seed(7);
  ls::MirroredStrategy strategy({.devices = ls::cpus(2)});
  auto scope = strategy.scope();  // variables made from here on have one component per replica

  const auto zero = torch::zeros({}, torch::kLong);
  const auto on_read = ls::Synchronization::OnRead;
  ls::Variable hits(zero, {.name = "hits", .synchronization = on_read, .aggregation = ls::Aggregation::Sum});
  ls::Variable rows(zero, {.name = "rows", .synchronization = on_read, .aggregation = ls::Aggregation::Sum});
  ls::Variable best(torch::zeros({}), {.name = "best", .aggregation = ls::Aggregation::Mean});
  ls::Variable steps(zero, {.name = "steps", .aggregation = ls::Aggregation::OnlyFirstReplica});

  for (int step = 0; step < 5; ++step) {
    strategy.run([&] {
      const int id = ls::get_replica_context().replica_id_in_sync_group();
      const auto scores = torch::rand({id == 0 ? 100 : 50});  // from the replica's own random numbers
      hits.assign_add((scores > 0.25).sum());                 // own component: no replica waits
      rows.assign_add(scores.size(0));
      best.assign(scores.max());  // the replicas meet: every component becomes the mean of both
      steps.assign_add(1);        // counts once, not once per replica
    });
  }

  std::cout << hits << "\n" << best << "\n";
  const auto accuracy = hits.read().to(torch::kDouble) / rows.read();
  std::cout << "steps " << steps.read().item() << ", rows " << rows.read().item() << ", accuracy " << accuracy.item()
            << "\n";

  // Five steps with 100 rows on replica 0 and 50 on replica 1.
  return rows.read().item<int>() == 750 && steps.read().item<int>() == 5 ? 0 : 1;
}
