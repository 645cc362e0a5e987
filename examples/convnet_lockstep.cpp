// Does what convnet_plain.cpp does, on two replicas with half of each batch.

#include <lockstep/lockstep.h>
#include <torch/torch.h>

#include <cstdio>

#include "digits.h"

namespace ls = lockstep;
namespace nn = torch::nn;
using torch::Tensor;
using Batch = torch::data::Example<>;  // data and target

struct NetImpl : nn::Module {
  NetImpl() : first(1, 16, 3), second(16, 32, 3), drop(0.2), last(32 * 16, 10) {
    register_module("first", first);
    register_module("second", second);
    register_module("drop", drop);
    register_module("last", last);
  }
  Tensor forward(const Tensor& images) { return last(drop(second(first(images).relu()).relu().flatten(1))); }

  nn::Conv2d first, second;
  nn::Dropout drop;
  nn::Linear last;
};
TORCH_MODULE(Net);

/// The digits one by one, for the DataLoader.
struct DigitDataset : torch::data::Dataset<DigitDataset> {
  explicit DigitDataset(Digits all) : digits(std::move(all)) {}
  Batch get(std::size_t i) override { return {digits.images[i], digits.labels[i]}; }
  torch::optional<std::size_t> size() const override { return digits.count(); }

  Digits digits;
};

int main() {
  torch::manual_seed(1);
  const auto [known, unseen] = split_digits(load_digits());
  auto rows = DigitDataset(known).map(torch::data::transforms::Stack<>());
  const Batch held_out{unseen.images, unseen.labels};
  auto loader = torch::data::make_data_loader<torch::data::samplers::RandomSampler>(rows, 64);
  ls::MirroredStrategy strategy({.devices = ls::cpus(2)});
  auto net = strategy.make<Net>();
  auto optimizer = strategy.make_optimizer<torch::optim::Adam>(net, torch::optim::AdamOptions(0.003));
  const auto per_row = nn::functional::CrossEntropyFuncOptions().reduction(torch::kNone);

  auto train_step = [&](const Batch& batch) {
    auto loss = ls::average_loss(nn::functional::cross_entropy(net->forward(batch.data), batch.target, per_row));
    optimizer.minimize(loss);
    return loss.detach();
  };
  auto count_right = [&](const Batch& batch) {
    const torch::NoGradGuard no_grad;
    return net->forward(batch.data).argmax(1).eq(batch.target).sum();
  };

  for (int epoch = 1; epoch <= 5; ++epoch) {
    net.train();
    auto loss = torch::zeros({});
    for (const auto& batch : *loader) {
      const auto losses = strategy.run(train_step, strategy.split(batch));
      loss += strategy.reduce(ls::ReduceOp::Sum, losses) * batch.data.size(0);
    }
    net.eval();
    const auto rights = strategy.run(count_right, strategy.split(held_out));
    const auto right = strategy.reduce(ls::ReduceOp::Sum, rights);
    std::printf("epoch %d: loss %.4f, held out %.1f%%\n", epoch, (loss / known.count()).item<double>(),
                (100.0 * right / unseen.count()).item<double>());
  }
  ls::save("digits.safetensors", net);
}
