// ResNet-20 for images of 3 x 32 x 32, and the same with images that are shifted and mirrored as they are read.

#include "one_network.h"

namespace lockstep::bench {
namespace {

namespace nn = torch::nn;

nn::Conv2d convolution(std::int64_t in, std::int64_t out, std::int64_t size, std::int64_t stride) {
  return nn::Conv2d(nn::Conv2dOptions(in, out, size).stride(stride).padding(size / 2).bias(false));
}

struct BlockImpl : nn::Module {
  BlockImpl(std::int64_t in, std::int64_t out, std::int64_t stride)
      : first(convolution(in, out, 3, stride)), norm1(out), second(convolution(out, out, 3, 1)), norm2(out) {
    register_module("first", first);
    register_module("norm1", norm1);
    register_module("second", second);
    register_module("norm2", norm2);
    if (stride == 1 && in == out) return;
    shortcut = register_module("shortcut", nn::Sequential(convolution(in, out, 1, stride), nn::BatchNorm2d(out)));
  }
  torch::Tensor forward(const torch::Tensor& x) {
    const auto y = norm2(second(torch::relu(norm1(first(x)))));
    return torch::relu(y + (shortcut ? shortcut->forward(x) : x));
  }

  nn::Conv2d first;
  nn::BatchNorm2d norm1;
  nn::Conv2d second;
  nn::BatchNorm2d norm2;
  nn::Sequential shortcut{nullptr};
};
TORCH_MODULE(Block);

struct ResNetImpl : nn::Module {
  ResNetImpl() : first(convolution(3, 16, 3, 1)), norm(16), last(64, 10) {
    register_module("first", first);
    register_module("norm", norm);
    for (const auto& [in, out, stride] : {std::array{16, 16, 1}, {16, 32, 2}, {32, 64, 2}}) {
      blocks->push_back(Block(in, out, stride));
      for (int k = 0; k < 2; ++k) blocks->push_back(Block(out, out, 1));
    }
    register_module("blocks", blocks);
    register_module("last", last);
  }
  torch::Tensor forward(const torch::Tensor& x) {
    return last(blocks->forward(torch::relu(norm(first(x)))).mean({2, 3}));
  }

  nn::Conv2d first;
  nn::BatchNorm2d norm;
  nn::Sequential blocks;
  nn::Linear last;
};
TORCH_MODULE(ResNet);

struct Images {
  using Net = ResNet;
  using Optimizer = torch::optim::SGD;
  static auto optimizer_options() { return torch::optim::SGDOptions(0.1).momentum(0.9).weight_decay(1e-4); }
  static Rows rows() { return {torch::rand({5'000, 3, 32, 32}), torch::randint(10, {5'000})}; }
  static auto transformed(Rows rows) { return rows; }
  static torch::Tensor losses(ResNetImpl& net, const torch::data::Example<>& batch) {
    return torch::cross_entropy_loss(net.forward(batch.data), batch.target, {}, torch::Reduction::None);
  }
};

/// Shifts an image by up to four pixels and mirrors half of them.
struct Augment : torch::data::transforms::TensorTransform<> {
  torch::Tensor operator()(torch::Tensor image) override {
    const auto place = torch::randint(9, {3});
    const auto* at = place.const_data_ptr<std::int64_t>();
    auto cut = torch::constant_pad_nd(image, {4, 4, 4, 4}).narrow(1, at[0], 32).narrow(2, at[1], 32);
    return at[2] < 4 ? cut.flip(2) : cut;
  }
};

struct AugmentedImages : Images {
  static auto transformed(Rows rows) { return std::move(rows).map(Augment()); }
};

}  // namespace

Program resnet() { return one_network<Images>(128); }
Program augmented_resnet() { return one_network<AugmentedImages>(64); }

}  // namespace lockstep::bench
