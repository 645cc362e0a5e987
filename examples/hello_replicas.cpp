// Three replicas combine their values: run, reduce, all_reduce and merge_call.

#include <lockstep/lockstep.h>
#include <torch/types.h>

#include <iostream>

namespace ls = lockstep;
using torch::Tensor;

int main() {
  ls::MirroredStrategy strategy({.devices = ls::cpus(3)});

  // run calls a function on all replicas at the same time. It returns their results as one PerReplica.
  auto square = [] {
    const int id = ls::get_replica_context().replica_id_in_sync_group();
    return torch::full({1}, id + 1).square();
  };
  ls::PerReplica<Tensor> squares = strategy.run(square);
  std::cout << "squares: " << squares << "\n";

  // reduce is called outside of replicas and combines their values into a plain one.
  Tensor sum = strategy.reduce(ls::ReduceOp::Sum, squares);
  std::cout << "their sum: " << sum.item() << "\n";

  // all_reduce is called inside a replica. Every replica gets the sum and continues with it.
  auto share = [](const Tensor& mine) { return mine / ls::get_replica_context().all_reduce(ls::ReduceOp::Sum, mine); };
  std::cout << "their shares of it: " << strategy.run(share, squares) << "\n";

  // merge_call waits for all replicas and calls one function with all their values.
  auto largest = [](ls::Strategy& s, const ls::PerReplica<Tensor>& all) { return s.gather(all, /*axis=*/0).max(); };
  auto distance = [&](const Tensor& mine) { return ls::get_replica_context().merge_call(largest, mine) - mine; };
  std::cout << "how far from the largest: " << strategy.run(distance, squares) << "\n";
}
