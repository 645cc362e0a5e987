// Records a step as a CUDA graph: `captured_step --device gpu`. Without that its two replicas are on CPUs, where each
// call of the step is a plain run.

#include <lockstep/lockstep.h>
#include <torch/torch.h>

#include <cstdio>

#include "devices.h"
#include "digits.h"

namespace ls = lockstep;
namespace nn = torch::nn;

int main(int argc, char** argv) {
  torch::manual_seed(3);
  const auto [known, unseen] = split_digits(load_digits());
  ls::MirroredStrategy strategy({.devices = devices_of(argc, argv, 2)});
  auto model =
      strategy.make([] { return nn::Sequential(nn::Flatten(), nn::Linear(64, 128), nn::ReLU(), nn::Linear(128, 10)); });
  auto optimizer = strategy.make_optimizer<torch::optim::AdamW>(model, torch::optim::AdamWOptions(0.003));
  // Batches of one size: a shorter one at the end would be a plain run.
  const auto rows = ls::data::from_tensor_slices(known).shuffle(2048);
  const auto batches = strategy.distribute(rows.batch(64, {.drop_remainder = true}));

  const auto per_row = nn::functional::CrossEntropyFuncOptions().reduction(torch::kNone);
  auto losses_of = [&](const torch::Tensor& guess, const torch::Tensor& labels) {
    return nn::functional::cross_entropy(guess, labels, per_row);
  };
  auto step = strategy.capture([&](const Digits& mine) {
    auto loss = ls::average_loss(losses_of(model->forward(mine.images), mine.labels));
    optimizer.minimize(loss);
    return loss.detach();
  });

  const auto device = strategy.replica_context(0).device();
  double accuracy = 0;
  for (int epoch = 1; epoch <= 10; ++epoch) {
    auto total = torch::zeros({}, device);
    for (const auto& batch : batches) total.add_(strategy.reduce(ls::ReduceOp::Sum, step(batch)));
    const torch::NoGradGuard no_grad;
    const auto right = strategy.run([&, &held_out = unseen] {
      return model->forward(held_out.images.to(device)).argmax(1).eq(held_out.labels.to(device)).to(torch::kFloat);
    });
    accuracy = right[0].mean().item<double>();
    std::printf("epoch %2d: loss %.4f, held out %.1f%%\n", epoch, total.item<double>() / 22, 100 * accuracy);
  }
  std::printf("the last step was %s\n", step.was_replayed() ? "a graph" : ("a plain run: " + step.reason()).c_str());
  return accuracy > 0.9 ? 0 : 1;
}
