// The convolutional network of LibTorch's MNIST example, over rows of its size.

#include "one_network.h"

namespace lockstep::bench {
namespace {

namespace nn = torch::nn;

struct MnistNetImpl : nn::Module {
  MnistNetImpl() : first(1, 10, 5), second(10, 20, 5), hidden(320, 50), last(50, 10) {
    register_module("first", first);
    register_module("second", second);
    register_module("drop", drop);
    register_module("hidden", hidden);
    register_module("last", last);
  }
  torch::Tensor forward(torch::Tensor x) {
    x = torch::relu(torch::max_pool2d(first(x), 2));
    x = torch::relu(torch::max_pool2d(drop(second(x)), 2));
    x = torch::relu(hidden(x.flatten(1)));
    x = torch::dropout(x, 0.5, is_training());
    return torch::log_softmax(last(x), 1);
  }

  nn::Conv2d first, second;
  nn::Dropout2d drop;
  nn::Linear hidden, last;
};
TORCH_MODULE(MnistNet);

struct Mnist {
  using Net = MnistNet;
  using Optimizer = torch::optim::SGD;
  static auto optimizer_options() { return torch::optim::SGDOptions(0.01).momentum(0.5); }
  static Rows rows() { return {torch::rand({10'000, 1, 28, 28}), torch::randint(10, {10'000})}; }
  static auto transformed(Rows rows) { return std::move(rows).map(torch::data::transforms::Normalize<>(0.13, 0.31)); }
  static torch::Tensor losses(MnistNetImpl& net, const torch::data::Example<>& batch) {
    return torch::nll_loss(net.forward(batch.data), batch.target, {}, torch::Reduction::None);
  }
};

}  // namespace

Program mnist() { return one_network<Mnist>(64); }

}  // namespace lockstep::bench
