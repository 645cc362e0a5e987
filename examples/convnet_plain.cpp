// A convolutional network that reads handwritten digits, in plain LibTorch: a DataLoader, evaluation after each epoch, a
// file of weights. convnet_lockstep.cpp does the same on two replicas.

#include <torch/torch.h>

#include <cstdio>

#include "digits.h"

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
  Net net;
  torch::optim::Adam optimizer(net->parameters(), torch::optim::AdamOptions(0.003));

  auto train_step = [&](const Batch& batch) {
    auto loss = nn::functional::cross_entropy(net->forward(batch.data), batch.target);
    optimizer.zero_grad();
    loss.backward();
    optimizer.step();
    return loss.detach();
  };
  auto count_right = [&](const Batch& batch) {
    const torch::NoGradGuard no_grad;
    return net->forward(batch.data).argmax(1).eq(batch.target).sum();
  };

  for (int epoch = 1; epoch <= 5; ++epoch) {
    net->train();
    auto loss = torch::zeros({});
    for (const auto& batch : *loader) {
      loss += train_step(batch) * batch.data.size(0);
    }
    net->eval();
    const auto right = count_right(held_out);
    std::printf("epoch %d: loss %.4f, held out %.1f%%\n", epoch, (loss / known.count()).item<double>(),
                (100.0 * right / unseen.count()).item<double>());
  }
  torch::save(net, "digits.pt");
}
