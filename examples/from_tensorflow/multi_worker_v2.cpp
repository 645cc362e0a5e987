// A custom training loop of TensorFlow 2.0 with MultiWorkerMirroredStrategy, next to the same loop in Lockstep's main
// API. Run directly it is one worker; `lockstep run -n 2` starts two.

#include <lockstep/compat.h>
#include <lockstep/lockstep.h>
#include <torch/torch.h>

#include <iostream>

namespace ls = lockstep;
namespace tf = lockstep::compat::v2;

const auto dataset = [] {
  const torch::Tensor x = torch::linspace(-1, 1, 240).view({60, 4});
  return ls::data::from_tensor_slices(std::pair{x, x.sum(1, true)}).batch(12);
};

template <class Model, class Optimizer>
auto step_of(Model& model, Optimizer& optimizer) {
  return [&](const std::pair<torch::Tensor, torch::Tensor>& rows) {
    const torch::Tensor loss = ls::average_loss((model->forward(rows.first) - rows.second).square().squeeze(1));
    optimizer.minimize(loss);
    return loss.detach();
  };
}

std::vector<float> with_v2() {
  tf::experimental::MultiWorkerMirroredStrategy strategy(ls::MultiWorkerOptions{.intra_op_threads = 1, .seed = 1});
  const auto scope = strategy.scope();
  auto model = strategy.core().make<torch::nn::Linear>(4, 1);
  auto optimizer = strategy.core().make_optimizer<torch::optim::SGD>(model, 0.1);
  const auto batches = strategy.experimental_distribute_dataset(dataset());
  std::vector<float> losses;
  for (int epoch = 0; epoch < 3; ++epoch) {
    float total = 0;
    for (const auto& batch : batches) {
      const auto of_replicas = strategy.experimental_run_v2(step_of(model, optimizer), std::tuple{batch});
      total += strategy.reduce(tf::ReduceOp::SUM, of_replicas, tf::None).item<float>();
    }
    losses.push_back(total);
  }
  return losses;
}

std::vector<float> with_the_main_api() {
  ls::MultiWorkerMirroredStrategy strategy({.intra_op_threads = 1, .seed = 1});
  auto model = strategy.make<torch::nn::Linear>(4, 1);
  auto optimizer = strategy.make_optimizer<torch::optim::SGD>(model, 0.1);
  const auto batches = strategy.distribute(dataset());
  std::vector<float> losses;
  for (int epoch = 0; epoch < 3; ++epoch) {
    float total = 0;
    for (const auto& batch : batches)
      total += strategy.reduce(ls::ReduceOp::Sum, strategy.run(step_of(model, optimizer), batch)).item<float>();
    losses.push_back(total);
  }
  return losses;
}

int main() {
  const std::vector<float> v2 = with_v2(), main_api = with_the_main_api();
  for (std::size_t epoch = 0; epoch < v2.size(); ++epoch)
    std::cout << "epoch " << epoch << ": loss " << v2[epoch] << " with compat::v2, " << main_api[epoch]
              << " with the main API\n";
  return v2 == main_api ? 0 : 1;
}
