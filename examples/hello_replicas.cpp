// Three replicas bring their values together in each of the ways there are.

#include <lockstep/lockstep.h>
#include <torch/types.h>

#include <iostream>

namespace ls = lockstep;
using torch::Tensor;

int main() {
  ls::MirroredStrategy strategy({.devices = ls::cpus(3)});

  // run: calls a function once per replica, at the same time. What the replicas return comes back as one PerReplica.
  auto square = [] {
    const int id = ls::get_replica_context().replica_id_in_sync_group();
    return torch::full({1}, id + 1).square();
  };
  ls::PerReplica<Tensor> squares = strategy.run(square);
  std::cout << "squares: " << squares << "\n";

  // reduce: outside of the replicas, one plain value from all of theirs.
  Tensor sum = strategy.reduce(ls::ReduceOp::Sum, squares);
  std::cout << "their sum: " << sum.item() << "\n";

  // all_reduce: inside; every replica gets the sum and goes on with it.
  auto share = [](const Tensor& mine) { return mine / ls::get_replica_context().all_reduce(ls::ReduceOp::Sum, mine); };
  std::cout << "their shares of it: " << strategy.run(share, squares) << "\n";

  // merge_call: the replicas meet, and one function sees what all of them brought.
  auto largest = [](ls::Strategy& s, const ls::PerReplica<Tensor>& all) { return s.gather(all, /*axis=*/0).max(); };
  auto distance = [&](const Tensor& mine) { return ls::get_replica_context().merge_call(largest, mine) - mine; };
  std::cout << "how far from the largest: " << strategy.run(distance, squares) << "\n";
}
