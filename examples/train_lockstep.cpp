// The training of train_plain.cpp on two replicas: each has half of the rows, and both end with the same weights.

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
  torch::manual_seed(1);
  return torch::nn::Sequential(torch::nn::Linear(2, 64), torch::nn::Tanh(), torch::nn::Linear(64, 1));
}

void train(torch::nn::Sequential net) {
  auto& replica = ls::get_replica_context();
  const Rows rows = make_rows(replica.replica_id_in_sync_group(), replica.num_replicas_in_sync());
  torch::optim::Adam optimizer(net->parameters(), 0.01);
  for (int step = 0; step <= 200; ++step) {
    optimizer.zero_grad();
    auto loss = torch::mse_loss(net->forward(rows.x), rows.y);
    loss.backward();
    for (auto& p : net->parameters()) p.mutable_grad() = replica.all_reduce(ls::ReduceOp::Mean, p.grad());
    optimizer.step();
    if (step % 50 != 0) continue;
    loss = replica.all_reduce(ls::ReduceOp::Mean, loss.detach());
    if (replica.replica_id_in_sync_group() == 0) std::cout << "step " << step << ": " << loss.item<float>() << "\n";
  }
}

int main() {
  ls::MirroredStrategy strategy({.devices = ls::cpus(2)});
  auto nets = strategy.values_from_function([](const ls::ValueContext&) { return make_net(); });
  strategy.run(train, nets);  // on both replicas, at the same time
}
