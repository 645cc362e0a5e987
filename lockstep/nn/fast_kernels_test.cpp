#include <ATen/ops/conv2d.h>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>
#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/generated/variable_factories.h>
#include <torch/nn/modules/conv.h>
#include <torch/nn/modules/linear.h>

#include <optional>
#include <string>

#include "lockstep/nn/autocast.h"
#include "lockstep/nn/mirrored_module.h"
#include "lockstep/strategy/kernels/product_tile.h"
#include "lockstep/strategy/kernels/replica_kernels.h"
#include "lockstep/strategy/mirrored_strategy.h"

namespace lockstep {
namespace {

using torch::nn::Conv2dOptions;

struct Case {
  std::string name;
  Conv2dOptions options;
  std::int64_t height = 13, width = 10;
  std::int64_t rows = 4;
  bool covered = true;  ///< by our own kernels; otherwise with LibTorch's bits
  bool channels_last = false;
};

struct LayerGradients {
  at::Tensor output, input, weight, bias;
};

/// Forward and backward on every replica; replica 1's gradients.
LayerGradients gradients(const Case& c, std::optional<bool> fast, int replicas = 2, at::ScalarType dtype = at::kFloat) {
  MirroredStrategy strategy({.devices = cpus(replicas), .seed = 7, .fast_kernels = fast});
  auto model = strategy.make([&] { return torch::nn::Conv2d(c.options); }, {.channels_last = c.channels_last});
  model.to(dtype);
  const auto format = c.channels_last ? at::MemoryFormat::ChannelsLast : at::MemoryFormat::Contiguous;
  const auto results = strategy.run([&] {
    auto x = at::randn({c.rows, c.options.in_channels(), c.height, c.width}, dtype).contiguous(format).requires_grad_();
    auto y = model->forward(x);
    (y * at::randn_like(y)).sum().backward();
    const auto bias = model->bias.defined() ? model->bias.grad() : at::Tensor(at::zeros({1}));
    return std::tuple(y.detach(), x.grad(), model->weight.grad(), bias);
  });
  const auto& [y, x, w, b] = results[static_cast<std::size_t>(replicas - 1)];
  return {y, x, w, b};
}

void expect_close(const at::Tensor& a, const at::Tensor& b, const char* what) {
  ASSERT_EQ(a.sizes(), b.sizes()) << what;
  ASSERT_EQ(a.scalar_type(), b.scalar_type()) << what;
  if (a.numel() == 0) return;
  EXPECT_LE((a - b).abs().max().item<double>(), 1e-5 * (1 + b.abs().max().item<double>())) << what;
}

class ReplicaConvolution : public testing::TestWithParam<Case> {};

TEST_P(ReplicaConvolution, GradientsAreThoseOfLibTorch) {
  const auto own = gradients(GetParam(), true);
  const auto libtorch = gradients(GetParam(), false);
  EXPECT_TRUE(at::equal(own.output, libtorch.output));
  expect_close(own.input, libtorch.input, "input");
  expect_close(own.weight, libtorch.weight, "weight");
  expect_close(own.bias, libtorch.bias, "bias");
  if (!GetParam().covered) {
    EXPECT_TRUE(at::equal(own.input, libtorch.input));
    EXPECT_TRUE(at::equal(own.weight, libtorch.weight));
  }
  const auto again = gradients(GetParam(), true);
  EXPECT_TRUE(at::equal(own.input, again.input));
  EXPECT_TRUE(at::equal(own.weight, again.weight));
}

std::vector<Case> cases() {
  std::vector<Case> all = {
      {.name = "Plain", .options = Conv2dOptions(8, 16, 3)},
      {.name = "OneChannel", .options = Conv2dOptions(1, 6, 5)},
      {.name = "NoBias", .options = Conv2dOptions(3, 5, 3).bias(false)},
      {.name = "Padded", .options = Conv2dOptions(8, 9, 3).padding(1)},
      {.name = "PaddedLikeTheKernel", .options = Conv2dOptions(4, 4, 3).padding(3)},
      {.name = "Strided", .options = Conv2dOptions(8, 16, 3).stride(2).padding(1)},
      {.name = "Oblong", .options = Conv2dOptions(8, 16, {1, 4}).stride({2, 1}).padding({0, 2})},
      {.name = "Pointwise", .options = Conv2dOptions(32, 16, 1)},
      {.name = "OneImage", .options = Conv2dOptions(8, 16, 3), .rows = 1},
      {.name = "NoImage", .options = Conv2dOptions(8, 16, 3), .rows = 0, .covered = false},
      {.name = "Dilated", .options = Conv2dOptions(8, 16, 3).dilation(2), .covered = false},
      {.name = "Grouped", .options = Conv2dOptions(8, 16, 3).groups(4), .covered = false},
  };
  for (std::size_t k = 0, n = all.size(); k < n; ++k) {
    all.push_back(all[k]);
    all.back().name += "ChannelsLast";
    all.back().channels_last = true;
  }
  return all;
}

INSTANTIATE_TEST_SUITE_P(Layers, ReplicaConvolution, testing::ValuesIn(cases()),
                         [](const testing::TestParamInfo<Case>& test) { return test.param.name; });

TEST(ReplicaConvolution, OneReplicaHasTheBitsOfLibTorchUnlessAskedOtherwise) {
  const Case plain{.name = "", .options = Conv2dOptions(8, 16, 3)};
  const auto unasked = gradients(plain, std::nullopt, 1);
  EXPECT_TRUE(at::equal(unasked.weight, gradients(plain, false, 1).weight));
  EXPECT_TRUE(at::equal(unasked.input, gradients(plain, false, 1).input));
  EXPECT_FALSE(at::equal(unasked.weight, gradients(plain, true, 1).weight)) << "the kernel was not called";
}

TEST(ReplicaConvolution, OtherTypesGoToLibTorch) {
  const Case plain{.name = "", .options = Conv2dOptions(8, 16, 3)};
  EXPECT_TRUE(at::equal(gradients(plain, true, 2, at::kDouble).weight, gradients(plain, false, 2, at::kDouble).weight));
}

TEST(ReplicaConvolution, BFloat16IsSafeOnSeveralThreads) {
  MirroredStrategy strategy({.devices = cpus(4), .seed = 11});
  auto model = strategy.make<torch::nn::Conv2d>(Conv2dOptions(8, 16, 3));
  model.to(at::kBFloat16);
  auto no_bias = strategy.make<torch::nn::Conv2d>(Conv2dOptions(8, 16, 3).bias(false));
  no_bias.to(at::kBFloat16);
  strategy.run([&] {
    EXPECT_EQ(no_bias->forward(at::randn({1, 8, 5, 5}, at::kBFloat16)).scalar_type(), at::kBFloat16);
  });
  for (int round = 0; round < 25; ++round) {
    strategy.run([&] {
      auto x = at::randn({4, 8, 13, 10}, at::kBFloat16).requires_grad_();
      const auto y = model->forward(x);
      EXPECT_EQ(y.scalar_type(), at::kBFloat16);
      y.sum().backward();
      EXPECT_EQ(x.grad().scalar_type(), at::kBFloat16);
      EXPECT_EQ(model->weight.grad().scalar_type(), at::kBFloat16);
      model->weight.mutable_grad().reset();
    });
  }
  const auto results = strategy.run([&] {
    const auto x = at::randn({2, 8, 6, 6}, at::kBFloat16);
    const auto expected = at::conv2d(x.to(at::kFloat), model->weight.to(at::kFloat), model->bias.to(at::kFloat));
    return (model->forward(x).to(at::kFloat) - expected).abs().max() / expected.abs().max();
  });
  for (std::size_t k = 0; k < 4; ++k) EXPECT_LE(results[k].item<float>(), 0.01F);
}

struct SafeCase {
  std::int64_t in = 64, out = 10, kernel = 3, stride = 1, padding = 1, dilation = 1;
  bool channels_last = false, bias = true;
};

/// With these shapes LibTorch's own kernels on Arm returned wrong results and corrupted the heap with two threads.
TEST(ReplicaConvolution, FloatIsSafeOnSeveralThreads) {
  for (const SafeCase& c :
       {SafeCase{}, SafeCase{.channels_last = true}, SafeCase{.out = 20, .kernel = 5, .padding = 2},
        SafeCase{.in = 16, .out = 33, .kernel = 5, .stride = 2, .padding = 0, .channels_last = true},
        SafeCase{.out = 1, .bias = false}, SafeCase{.in = 37, .out = 7, .padding = 2, .dilation = 2},
        SafeCase{.in = 32, .out = 64}, SafeCase{.out = 12, .kernel = 1, .padding = 0}}) {
    SCOPED_TRACE(testing::Message() << c.in << " to " << c.out << " channels, kernel " << c.kernel << ", channels-last "
                                    << c.channels_last);
    MirroredStrategy strategy({.devices = cpus(2), .seed = 2});
    auto model = strategy.make<torch::nn::Conv2d>(
        {.channels_last = c.channels_last},
        Conv2dOptions(c.in, c.out, c.kernel).stride(c.stride).padding(c.padding).dilation(c.dilation).bias(c.bias));
    strategy.run([&] {
      auto x = at::randn({8, c.in, 9, 8});
      if (c.channels_last) x = x.contiguous(at::MemoryFormat::ChannelsLast);
      x.requires_grad_();
      const auto exact = [](const at::Tensor& tensor) {
        return tensor.defined() ? tensor.detach().to(at::kDouble) : at::Tensor();
      };
      auto exact_x = exact(x).requires_grad_(), exact_weight = exact(model->weight).requires_grad_();
      const auto expected = at::conv2d(exact_x, exact_weight, exact(model->bias), c.stride,
                                       at::IntArrayRef{c.padding, c.padding}, c.dilation);
      expected.square().sum().backward();
      for (int round = 0; round < 30; ++round) {
        const auto y = model->forward(x);
        ASSERT_TRUE(y.allclose(expected.to(at::kFloat), 1e-3, 1e-3)) << "round " << round;
      }
      model->forward(x).square().sum().backward();
      const auto relative = [](const at::Tensor& a, const at::Tensor& b) {
        return ((a.to(at::kDouble) - b).abs().max() / b.abs().max()).item<double>();
      };
      EXPECT_LT(relative(x.grad(), exact_x.grad()), 1e-4);
      EXPECT_LT(relative(model->weight.grad(), exact_weight.grad()), 1e-4);
      model->weight.mutable_grad().reset();
      if (c.bias) {
        EXPECT_LT(relative(model->bias.grad(), expected.detach().mul(2).sum({0, 2, 3})), 1e-4);
        model->bias.mutable_grad().reset();
      }
    });
  }
}

/// The gradient of a transposed convolution's input is such a convolution: these gave wrong gradients and crashed.
TEST(ReplicaConvolution, TransposedIsSafeOnSeveralThreads) {
  using torch::nn::ConvTranspose2dOptions;
  for (const auto& options :
       {ConvTranspose2dOptions(24, 24, 4).stride(2).padding(1), ConvTranspose2dOptions(24, 24, 3).padding(1),
        ConvTranspose2dOptions(10, 64, 4).stride(2).padding(1).bias(false), ConvTranspose2dOptions(32, 20, 4).stride(2),
        ConvTranspose2dOptions(10, 12, 3).stride(2).output_padding(1).dilation(2),
        ConvTranspose2dOptions(10, 12, 3).stride(1).output_padding(1).dilation(3),
        ConvTranspose2dOptions(24, 12, 3).groups(2)}) {
    for (const bool channels_last : {false, true}) {
      SCOPED_TRACE(testing::Message() << options.in_channels() << " to " << options.out_channels() << ", channels-last "
                                      << channels_last);
      MirroredStrategy strategy({.devices = cpus(2), .seed = 2});
      auto model = strategy.make<torch::nn::ConvTranspose2d>({.channels_last = channels_last}, options);
      strategy.run([&] {
        auto x = at::randn({8, options.in_channels(), 9, 8});
        if (channels_last) x = x.contiguous(at::MemoryFormat::ChannelsLast);
        x.requires_grad_();
        torch::nn::ConvTranspose2d exact(options);
        exact->to(at::kDouble);
        {
          const at::NoGradGuard no_grad;
          exact->weight.copy_(model->weight);
          if (options.bias()) exact->bias.copy_(model->bias);
        }
        const auto exact_x = x.detach().to(at::kDouble).requires_grad_();
        const auto penalised = [](const at::Tensor& y, const at::Tensor& of, std::vector<at::Tensor> wanted) {
          // Gradients, and gradients of gradients.
          const auto slope = torch::autograd::grad({y.square().sum()}, {of}, {}, true, /*create_graph=*/true)[0];
          wanted.push_back(of);
          auto all = torch::autograd::grad({y.square().sum() + slope.square().sum()}, wanted);
          all.push_back(slope.detach());
          return all;
        };
        const auto weights_of = [](torch::nn::ConvTranspose2dImpl& layer) { return layer.parameters(); };
        const auto expected = penalised(exact->forward(exact_x), exact_x, weights_of(*exact));
        for (int round = 0; round < 8; ++round) {
          const auto seen = penalised(model->forward(x), x, weights_of(*model));
          ASSERT_EQ(seen.size(), expected.size());
          for (std::size_t i = 0; i < seen.size(); ++i) {
            const auto off = (seen[i].to(at::kDouble) - expected[i]).abs().max() / expected[i].abs().max();
            ASSERT_LT(off.item<double>(), 1e-4) << "gradient " << i << ", round " << round;
          }
        }
      });
    }
  }
}

TEST(ReplicaConvolution, TransposedInOneDimensionAndIn16BitsIsSafeOnSeveralThreads) {
  for (const auto type : {at::kFloat, at::kBFloat16}) {
    MirroredStrategy strategy({.devices = cpus(2), .seed = 2});
    auto model = strategy.make<torch::nn::ConvTranspose1d>(
        torch::nn::ConvTranspose1dOptions(24, 20, 4).stride(2).output_padding(1));
    model.to(type);
    strategy.run([&] {
      const auto x = at::randn({8, 24, 30}).to(type).requires_grad_();
      const auto exact_x = x.detach().to(at::kDouble).requires_grad_();
      const auto exact = at::conv_transpose1d(exact_x, model->weight.detach().to(at::kDouble),
                                              model->bias.detach().to(at::kDouble), 2, 0, /*output_padding=*/1);
      const auto expected = torch::autograd::grad({exact.square().sum()}, {exact_x})[0];
      for (int round = 0; round < 20; ++round) {
        const auto seen = torch::autograd::grad({model->forward(x).to(at::kFloat).square().sum()}, {x})[0];
        ASSERT_EQ(seen.scalar_type(), type);
        const auto off = (seen.to(at::kDouble) - expected).abs().max() / expected.abs().max();
        ASSERT_LT(off.item<double>(), type == at::kFloat ? 1e-4 : 0.03) << "round " << round;
      }
    });
  }
}

TEST(ReplicaConvolution, OneDimensionIsSafeOnSeveralThreads) {
  MirroredStrategy strategy({.devices = cpus(2), .seed = 2});
  auto model = strategy.make<torch::nn::Conv1d>(torch::nn::Conv1dOptions(32, 20, 5).stride(2).padding(3));
  strategy.run([&] {
    const auto x = at::randn({8, 32, 50});
    const auto expected = at::conv1d(x.to(at::kDouble), model->weight.to(at::kDouble), model->bias.to(at::kDouble), 2,
                                     at::IntArrayRef{3});
    for (int round = 0; round < 50; ++round)
      ASSERT_TRUE(model->forward(x).allclose(expected.to(at::kFloat), 1e-3, 1e-3)) << "round " << round;
    EXPECT_EQ(model->forward(at::randn({32, 50})).sizes(), at::IntArrayRef({20, 26}));  // one image
    EXPECT_EQ(model->forward(at::randn({0, 32, 50})).sizes(), at::IntArrayRef({0, 20, 26}));
    EXPECT_THROW(model->forward(at::randn({8, 31, 50})), c10::Error);
  });
}

TEST(ReplicaConvolution, AutocastStillRounds) {
  MirroredStrategy strategy({.devices = cpus(2)});
  auto model = strategy.make<torch::nn::Conv2d>(Conv2dOptions(8, 10, 3));
  strategy.run([&] {
    const Autocast autocast(at::kBFloat16);
    EXPECT_EQ(model->forward(at::randn({2, 8, 6, 6})).scalar_type(), at::kBFloat16);
  });
}

TEST(ReplicaConvolution, FrozenWeightsGetNoGradient) {
  MirroredStrategy strategy({.devices = cpus(2), .fast_kernels = true});
  auto model = strategy.make<torch::nn::Conv2d>(Conv2dOptions(4, 4, 3));
  model.apply([](torch::nn::Module& module) { module.named_parameters()["weight"].set_requires_grad(false); });
  strategy.run([&] {
    auto x = at::randn({2, 4, 6, 6}).requires_grad_();
    model->forward(x).sum().backward();
    EXPECT_TRUE(x.grad().defined());
    EXPECT_FALSE(model->weight.grad().defined());
    EXPECT_TRUE(model->bias.grad().defined());
  });
}

TEST(ReplicaConvolution, GradientsOfGradientsWork) {
  const auto second = [](bool fast) {
    MirroredStrategy strategy({.devices = cpus(2), .seed = 3, .fast_kernels = fast});
    auto model = strategy.make<torch::nn::Conv2d>(Conv2dOptions(3, 4, 3));
    const auto results = strategy.run([&] {
      auto x = at::randn({2, 3, 6, 6}).requires_grad_();
      const auto slope =
          torch::autograd::grad({model->forward(x).square().sum()}, {x}, {}, true, /*create_graph=*/true)[0];
      slope.square().sum().backward();
      return std::pair(x.grad(), model->weight.grad());
    });
    return results[1];
  };
  const auto own = second(true), libtorch = second(false);
  expect_close(own.first, libtorch.first, "input");
  expect_close(own.second, libtorch.second, "weight");
}

/// Forward and backward of a linear layer on two replicas; replica 1's values.
struct LinearCase {
  std::string name;
  std::vector<std::int64_t> input;
  std::int64_t out = 96;
  bool bias = true;
  int threads = 1;  ///< per replica
};

class ReplicaLinear : public testing::TestWithParam<LinearCase> {};

std::vector<at::Tensor> linear_gradients(const LinearCase& c, bool fast, int replicas = 2) {
  MirroredStrategy strategy(
      {.devices = cpus(replicas), .intra_op_threads = c.threads, .seed = 7, .fast_kernels = fast});
  auto model = strategy.make<torch::nn::Linear>(torch::nn::LinearOptions(c.input.back(), c.out).bias(c.bias));
  const auto results = strategy.run([&] {
    auto x = at::randn(c.input).requires_grad_();
    auto y = model->forward(x);
    at::Tensor unseen;
    {
      const at::NoGradGuard no_grad;
      unseen = model->forward(x);
    }
    (y * at::randn_like(y)).sum().backward();
    EXPECT_TRUE(model->weight.grad().is_contiguous());
    return std::vector<at::Tensor>{y.detach(), unseen, x.grad(), model->weight.grad(),
                                   c.bias ? model->bias.grad() : at::zeros({1})};
  });
  return results[static_cast<std::size_t>(replicas - 1)];
}

TEST_P(ReplicaLinear, ValuesAndGradientsAreThoseOfLibTorch) {
  const auto own = linear_gradients(GetParam(), true), libtorch = linear_gradients(GetParam(), false),
             again = linear_gradients(GetParam(), true);
  const char* const names[] = {"output", "output without a graph", "input", "weight", "bias"};
  for (std::size_t k = 0; k < own.size(); ++k) {
    expect_close(own[k], libtorch[k], names[k]);
    EXPECT_TRUE(at::equal(own[k], again[k])) << names[k];
  }
}

INSTANTIATE_TEST_SUITE_P(
    Layers, ReplicaLinear,
    testing::Values(LinearCase{.name = "Large", .input = {128, 200}},
                    LinearCase{.name = "OddSizes", .input = {67, 333}, .out = 77},
                    LinearCase{.name = "NoBias", .input = {128, 200}, .bias = false},
                    LinearCase{.name = "Small", .input = {3, 5}, .out = 2},
                    LinearCase{.name = "ThreeDimensions", .input = {4, 32, 150}, .out = 90},
                    LinearCase{.name = "NoRows", .input = {0, 200}},
                    LinearCase{.name = "ThreeThreads", .input = {299, 500}, .out = 601, .threads = 3},
                    LinearCase{.name = "ManyRows", .input = {2101, 40}, .out = 130, .threads = 3},
                    LinearCase{.name = "TwoThreadsWithoutBias", .input = {512, 100}, .bias = false, .threads = 2}),
    [](const testing::TestParamInfo<LinearCase>& test) { return test.param.name; });

TEST(ReplicaLinear, OwnProductsAreUsedWhereTheyWereMeasuredFaster) {
#if defined(__aarch64__)
  const bool arm = !has_sve();
#else
  const bool arm = false;
#endif
  const bool avx512 = kernels::avx512_tile() != nullptr;
  const auto is_own = [](int replicas, std::optional<bool> fast, int threads, std::int64_t size = 100) {
    MirroredStrategy strategy({.devices = cpus(replicas), .intra_op_threads = threads, .fast_kernels = fast});
    auto model = strategy.make<torch::nn::Linear>(size, size);
    return strategy.run([&] {
      return model->forward(at::randn({128, size})).grad_fn()->name();
    })[0] != "AddmmBackward0";
  };
  EXPECT_EQ(is_own(2, std::nullopt, 1), arm);
  EXPECT_FALSE(is_own(2, std::nullopt, 2));
  EXPECT_FALSE(is_own(2, std::nullopt, 8));
  EXPECT_FALSE(is_own(2, std::nullopt, 2, 400));
  EXPECT_EQ(is_own(2, std::nullopt, 8, 400), avx512);
  EXPECT_EQ(is_own(2, true, 1), !has_sve());
  EXPECT_EQ(is_own(2, true, 2), avx512);
  EXPECT_FALSE(is_own(1, std::nullopt, 8, 400));
  EXPECT_FALSE(is_own(2, false, 1));
  EXPECT_FALSE(is_own(2, false, 2));
  EXPECT_FALSE(is_own(1, std::nullopt, 1));
}

TEST(ReplicaLinear, GradientsOfGradientsWork) {
  const auto second = [](bool fast) {
    MirroredStrategy strategy({.devices = cpus(2), .intra_op_threads = 1, .seed = 3, .fast_kernels = fast});
    auto model = strategy.make<torch::nn::Linear>(200, 96);
    const auto results = strategy.run([&] {
      auto x = at::randn({128, 200}).requires_grad_();
      const auto slope =
          torch::autograd::grad({model->forward(x).square().sum()}, {x}, {}, true, /*create_graph=*/true)[0];
      slope.square().sum().backward();
      return std::pair(x.grad(), model->weight.grad());
    });
    return results[1];
  };
  const auto own = second(true), libtorch = second(false);
  expect_close(own.first, libtorch.first, "input");
  expect_close(own.second, libtorch.second, "weight");
}

TEST(ReplicaLinear, AWeightThatChangedBeforeBackwardIsNoticed) {
  MirroredStrategy strategy({.devices = cpus(2), .intra_op_threads = 1, .fast_kernels = true});
  auto model = strategy.make<torch::nn::Linear>(200, 96);
  strategy.run([&] {
    const auto y = model->forward(at::randn({128, 200}).requires_grad_()).sum();
    model.update([](torch::nn::LinearImpl& net) { net.weight.mul_(2); });
    EXPECT_THROW(y.backward(), c10::Error);
  });
}

}  // namespace
}  // namespace lockstep
