#include <gtest/gtest.h>
#include <torch/nn/modules/conv.h>
#include <torch/nn/modules/linear.h>
#include <torch/optim/adam.h>
#include <torch/utils.h>

#include "lockstep/base/logging.h"
#include "lockstep/nn/mirrored_optimizer.h"
#include "lockstep/strategy/mirrored_strategy.h"
#include "tests/support/replicas.h"
#include "tests/support/small_net.h"

namespace lockstep {
namespace {

/// Records in which order the images came.
struct WatchfulConvNet : torch::nn::Module {
  explicit WatchfulConvNet(int channels = 6)
      : first(torch::nn::Conv2dOptions(3, channels, 3).padding(1)),
        second(torch::nn::Conv2dOptions(channels, 4, 3).padding(1)),
        last(4, 2) {
    register_module("first", first);
    register_module("second", second);
    register_module("last", last);
  }
  at::Tensor forward(const at::Tensor& x) {
    came_channels_last = x.is_contiguous(at::MemoryFormat::ChannelsLast);
    const at::Tensor hidden = first(x).relu();
    stayed_channels_last = hidden.is_contiguous(at::MemoryFormat::ChannelsLast);
    return last(second(hidden).relu().mean({2, 3}));
  }

  torch::nn::Conv2d first, second;
  torch::nn::Linear last;
  bool came_channels_last = false;
  bool stayed_channels_last = false;
};

class ChannelsLast : public testing::TestWithParam<int> {
 protected:
  void SetUp() override { set_log_severity(Severity::Warning); }
};
INSTANTIATE_TEST_SUITE_P(Replicas, ChannelsLast, testing::Values(1, 2, 3));

TEST_P(ChannelsLast, ConvertsWeightsOfEveryReplicaAndWhatConvolutionsGiveOn) {
  MirroredStrategy strategy({.devices = test_devices(GetParam())});
  auto model = strategy.make<WatchfulConvNet>({.channels_last = true}, 5);
  const ModuleOptions named{.channels_last = true};
  auto from_factory = strategy.make([] { return std::make_shared<WatchfulConvNet>(5); }, named);
  auto from_named = strategy.make<WatchfulConvNet>(named, 5);
  for (auto* each : {&model, &from_factory, &from_named}) {
    for (std::size_t k = 0; k < each->size(); ++k) {
      EXPECT_EQ(each->replica(k)->first->weight.size(0), 5);
      EXPECT_TRUE(each->replica(k)->first->weight.is_contiguous(at::MemoryFormat::ChannelsLast));
      EXPECT_TRUE(each->replica(k)->second->weight.is_contiguous(at::MemoryFormat::ChannelsLast));
      EXPECT_EQ(each->replica(k)->first->weight.data_ptr(), each->replica(0)->first->weight.data_ptr());
    }
  }
  const at::Tensor images = torch::randn({2, 3, 8, 8});
  for (const at::Tensor& given : {images, images.contiguous(at::MemoryFormat::ChannelsLast)}) {
    strategy.run([&] {
      const at::Tensor called = model(given);
      const bool came = model->came_channels_last;
      EXPECT_TRUE(model->stayed_channels_last);
      const at::Tensor forwarded = model->forward(given);
      EXPECT_EQ(model->came_channels_last, came) << "model(x) and model->forward(x) differ";
      EXPECT_TRUE(model->stayed_channels_last);
      EXPECT_TRUE(same_bits(called, forwarded));
    });
  }

  auto plain = strategy.make<WatchfulConvNet>(5);
  EXPECT_FALSE(plain->first->weight.is_contiguous(at::MemoryFormat::ChannelsLast));
  strategy.run([&] { plain(images); });
  EXPECT_FALSE(plain->came_channels_last);
}

TEST_P(ChannelsLast, TrainsAsTheOrdinaryFormatDoes) {
  torch::manual_seed(7);
  MirroredStrategy strategy({.devices = test_devices(GetParam())});
  auto last = strategy.make<WatchfulConvNet>({.channels_last = true});
  auto plain = strategy.make<WatchfulConvNet>();
  last.to(at::kDouble);
  plain.to(at::kDouble);
  EXPECT_TRUE(last->first->weight.is_contiguous(at::MemoryFormat::ChannelsLast)) << "lost by the conversion";
  copy_values(plain.parameters(), last.parameters());
  auto of_last = strategy.make_optimizer<torch::optim::Adam>(last, torch::optim::AdamOptions(0.01));
  auto of_plain = strategy.make_optimizer<torch::optim::Adam>(plain, torch::optim::AdamOptions(0.01));
  for (int step = 0; step < 5; ++step) {
    const at::Tensor images = torch::randn({4, 3, 8, 8}, at::kDouble);
    strategy.run([&] {
      of_last.minimize(last(images).square().mean());
      of_plain.minimize(plain(images).square().mean());
    });
  }
  for (std::size_t i = 0; i < plain.parameters().size(); ++i) {
    EXPECT_TRUE(last.parameters()[i].allclose(plain.parameters()[i], 1e-9, 1e-12)) << "parameter #" << i;
  }
}

}  // namespace
}  // namespace lockstep
