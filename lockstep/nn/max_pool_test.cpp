#include <ATen/ops/max_pool2d.h>
#include <ATen/ops/randint.h>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>
#include <torch/csrc/autograd/generated/variable_factories.h>
#include <torch/nn/modules/linear.h>

#include <optional>
#include <string>
#include <vector>

#include "lockstep/nn/mirrored_module.h"
#include "lockstep/strategy/mirrored_strategy.h"

namespace lockstep {
namespace {

struct Pooling {
  std::string name;
  std::vector<std::int64_t> input = {5, 3, 12, 9};
  std::int64_t kernel = 2, stride = 2, padding = 0, dilation = 1;
  bool ceil = false;
  at::MemoryFormat format = at::MemoryFormat::ChannelsLast;
  at::ScalarType dtype = at::kFloat;
};

/// The gradient of the last replica's input.
at::Tensor input_gradient(const Pooling& pooling, int replicas, std::optional<bool> own_kernels, int threads = 1) {
  MirroredStrategy strategy(
      {.devices = cpus(replicas), .intra_op_threads = threads, .seed = 7, .fast_kernels = own_kernels});
  strategy.make([] { return torch::nn::Linear(1, 1); });
  const auto results = strategy.run([&] {
    // Few different values: windows with several maxima.
    auto x = at::randint(0, 4, pooling.input, pooling.dtype).contiguous(pooling.format).requires_grad_();
    auto y = at::max_pool2d(x, pooling.kernel, pooling.stride, pooling.padding, pooling.dilation, pooling.ceil);
    (y * at::randn_like(y)).sum().backward();
    return x.grad();
  });
  return results[static_cast<std::size_t>(replicas - 1)];
}

std::vector<Pooling> poolings() {
  using at::MemoryFormat;
  return {
      {.name = "plain"},
      {.name = "overlapping", .kernel = 3, .stride = 1},
      {.name = "padded", .kernel = 3, .stride = 2, .padding = 1},
      {.name = "dilated", .kernel = 2, .stride = 1, .dilation = 3},
      {.name = "ceil", .kernel = 2, .stride = 2, .ceil = true},
      {.name = "gaps", .kernel = 2, .stride = 4},
      {.name = "one_channel", .input = {4, 1, 8, 8}},
      {.name = "many_channels", .input = {2, 65, 7, 6}, .kernel = 3, .stride = 2},
      {.name = "one_row", .input = {1, 4, 6, 6}},
      {.name = "no_rows", .input = {0, 4, 6, 6}},
      {.name = "one_pixel", .input = {3, 4, 1, 1}, .kernel = 1, .stride = 1},
      {.name = "contiguous", .format = MemoryFormat::Contiguous},
      {.name = "float64", .dtype = at::kDouble},
      {.name = "bfloat16", .dtype = at::kBFloat16},
  };
}

class ReplicaMaxPool : public testing::TestWithParam<Pooling> {};

TEST_P(ReplicaMaxPool, GradientHasTheBitsOfLibTorch) {
  for (const int replicas : {1, 2}) {
    const at::Tensor expected = input_gradient(GetParam(), replicas, false);
    for (const std::optional<bool> own : {std::optional<bool>(), std::optional(true)}) {
      for (const int threads : {1, 3}) {
        const at::Tensor seen = input_gradient(GetParam(), replicas, own, threads);
        ASSERT_EQ(seen.scalar_type(), expected.scalar_type());
        EXPECT_TRUE(at::equal(seen, expected)) << replicas << " replicas, " << threads << " threads";
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Table, ReplicaMaxPool, testing::ValuesIn(poolings()),
                         [](const auto& c) { return c.param.name; });

TEST(MaxPoolOfReplicas, TheGradientOfChannelsLastImagesIsChannelsLast) {
  MirroredStrategy strategy({.devices = cpus(2)});
  auto model = strategy.make([] { return torch::nn::Linear(1, 1); });
  const auto formats = strategy.run([&] {
    const auto x = at::randn({2, 3, 4, 4}).contiguous(at::MemoryFormat::ChannelsLast).requires_grad_();
    const auto above = (x * 2);  // its gradient reaches `x` unchanged, whatever its layout
    at::Tensor seen;
    above.register_hook([&](const at::Tensor& gradient) { seen = gradient; });
    at::max_pool2d(above, 2).sum().backward();
    return std::string(seen.is_contiguous(at::MemoryFormat::ChannelsLast) ? "channels-last" : "other");
  });
  EXPECT_EQ(formats[0], "channels-last");
  EXPECT_EQ(formats[1], "channels-last");
}

TEST(MaxPoolOfReplicas, GradientsOfGradientsAreLibTorchs) {
  MirroredStrategy strategy({.devices = cpus(2)});
  strategy.make([] { return torch::nn::Linear(1, 1); });
  const auto results = strategy.run([&] {
    const auto x = at::randn({2, 3, 4, 4}).contiguous(at::MemoryFormat::ChannelsLast).requires_grad_();
    const auto y = at::max_pool2d(x * x, 2).sum();
    const auto first = torch::autograd::grad({y}, {x}, {}, /*retain_graph=*/true, /*create_graph=*/true)[0];
    const auto second = torch::autograd::grad({first.sum()}, {x})[0];
    return second.sum().item<double>();  // 2 for each of the 2 x 3 x 4 winners
  });
  EXPECT_EQ(results[0], 48.0);
  EXPECT_EQ(results[1], 48.0);
}

}  // namespace
}  // namespace lockstep
