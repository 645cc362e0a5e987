// Does what train_lockstep.cpp does, on one replica of each worker: lockstep run -n 2 ./cluster

#include <lockstep/lockstep.h>
#include <torch/torch.h>

#include <iostream>

namespace ls = lockstep;

struct Rows {
  torch::Tensor x, y;
};

Rows make_rows(int part, int parts) {
  const auto x = torch::linspace(-3, 3, 1024).reshape({512, 2}).chunk(parts)[part];
  return {x, torch::sin(x).sum(1, /*keepdim=*/true)};
}

torch::nn::Sequential make_net() {
  return torch::nn::Sequential(torch::nn::Linear(2, 64), torch::nn::Tanh(), torch::nn::Linear(64, 1));
}

int main() {
  torch::manual_seed(1);
  ls::MultiWorkerMirroredStrategy strategy;
  auto part = [](ls::ValueContext its) { return make_rows(its.replica_id_in_sync_group, its.num_replicas_in_sync); };
  auto rows = strategy.values_from_function(part);  // PerReplica<Rows>
  auto net = strategy.make(make_net);
  auto optimizer = strategy.make_optimizer<torch::optim::Adam>(net, torch::optim::AdamOptions(0.01));
  auto step = [&](const Rows& mine) {
    auto loss = ls::average_loss((net->forward(mine.x) - mine.y).square());
    optimizer.minimize(loss);
    return loss.detach();
  };
  for (int k = 0; k <= 200; ++k) {
    auto loss = strategy.reduce(ls::ReduceOp::Sum, strategy.run(step, rows));
    if (k % 50 == 0) std::cout << "step " << k << ": " << loss.item<float>() << "\n";
  }
}
