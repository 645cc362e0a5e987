// A program of compat.v1 with make_dataset_iterator and experimental_run, next to the same program in Lockstep's main API.

#include <lockstep/compat.h>
#include <lockstep/lockstep.h>
#include <torch/torch.h>

#include <iostream>

namespace ls = lockstep;
namespace tf = lockstep::compat::v1;

const auto dataset = [] {
  const torch::Tensor x = torch::linspace(-1, 1, 240).view({60, 4});
  return ls::data::from_tensor_slices(std::pair{x, x.sum(1, true)}).repeat().batch(12);
};

/// A training step on one replica's rows, for both programs.
template <class Model, class Optimizer>
auto step_of(Model& model, Optimizer& optimizer) {
  return [&](const std::pair<torch::Tensor, torch::Tensor>& rows) {
    const torch::Tensor loss = ls::average_loss((model->forward(rows.first) - rows.second).square().squeeze(1));
    optimizer.minimize(loss);
    return loss.detach();
  };
}

torch::Tensor with_v1() {
  torch::manual_seed(1);
  tf::MirroredStrategy strategy({.devices = ls::cpus(2), .intra_op_threads = 1});
  const auto scope = strategy.scope();
  auto model = strategy.core().make<torch::nn::Linear>(4, 1);
  auto optimizer = strategy.core().make_optimizer<torch::optim::SGD>(model, 0.1);
  auto iterator = strategy.make_dataset_iterator(dataset());
  torch::Tensor loss;
  for (int step = 0; step < 20; ++step)
    loss = strategy.reduce("sum", strategy.experimental_run(step_of(model, optimizer), iterator));
  return loss;
}

torch::Tensor with_the_main_api() {
  torch::manual_seed(1);
  ls::MirroredStrategy strategy({.devices = ls::cpus(2), .intra_op_threads = 1});
  auto model = strategy.make<torch::nn::Linear>(4, 1);
  auto optimizer = strategy.make_optimizer<torch::optim::SGD>(model, 0.1);
  auto steps = strategy.distribute(dataset()).iterator();
  torch::Tensor loss;
  for (int step = 0; step < 20; ++step)
    loss = strategy.reduce(ls::ReduceOp::Sum, strategy.run(step_of(model, optimizer), steps.get_next()));
  return loss;
}

int main() {
  const torch::Tensor v1 = with_v1(), main_api = with_the_main_api();
  std::cout << "20 steps: loss " << v1.item<float>() << " with compat::v1, " << main_api.item<float>()
            << " with the main API\n";
  return v1.equal(main_api) ? 0 : 1;
}
