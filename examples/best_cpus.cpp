// Which number of replicas is fastest here: from `lockstep tune --remember`, or measured by the program itself.

#include <lockstep/lockstep.h>
#include <torch/torch.h>

#include <functional>
#include <iostream>

namespace ls = lockstep;
namespace nn = torch::nn;
using torch::Tensor;

nn::Sequential make_net() {
  return nn::Sequential(nn::Conv2d(1, 8, 3), nn::ReLU(), nn::Flatten(), nn::Linear(8 * 6 * 6, 10));
}

int main() {
  torch::manual_seed(1);
  const Tensor images = torch::rand({64, 1, 8, 8});

  const auto make_step = [&](ls::MirroredStrategy& strategy) -> std::function<void()> {
    auto net = strategy.make(make_net);
    auto optimizer = strategy.make_optimizer<torch::optim::SGD>(net, torch::optim::SGDOptions(0.01));
    auto train = [=](const Tensor& mine) mutable { optimizer.minimize(ls::average_loss(net->forward(mine).square())); };
    return [=, &strategy]() mutable { strategy.run(train, strategy.split(images)); };
  };
  std::cout << ls::suggest_replicas(make_step, {.seconds = 0.3});

  ls::MirroredStrategy strategy({.devices = ls::best_cpus()});
  const auto step = make_step(strategy);
  for (int k = 0; k < 10; ++k) step();
  std::cout << "trained with replicas: " << strategy.num_replicas_in_sync() << "\n";
}
