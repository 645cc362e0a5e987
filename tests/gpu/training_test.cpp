#include <ATen/ops/full.h>
#include <gtest/gtest.h>
#include <torch/nn/modules/embedding.h>
#include <torch/optim/adagrad.h>
#include <torch/optim/adam.h>
#include <torch/optim/adamw.h>
#include <torch/optim/rmsprop.h>
#include <torch/optim/sgd.h>
#include <torch/utils.h>

#include <type_traits>

#include "lockstep/nn/mirrored_optimizer.h"
#include "lockstep/nn/save/save.h"
#include "lockstep/nn/sync_batch_norm.h"
#include "tests/gpu/gpu_support.h"
#include "tests/gpu/gpu_training.h"
#include "tests/support/replicas.h"
#include "tests/support/temporary_folder.h"

namespace lockstep {
namespace {

using torch::optim::AdagradOptions;
using torch::optim::AdamOptions;
using torch::optim::AdamWOptions;
using torch::optim::RMSpropOptions;
using torch::optim::SGDOptions;

class GpuTraining : public testing::TestWithParam<int> {
 protected:
  const int replicas = GetParam();
};
INSTANTIATE_TEST_SUITE_P(Replicas, GpuTraining, testing::Values(1, 2, 3, 4));

/// 30 steps with batches of 1 to 13 rows, some pieces empty, compared to LibTorch's own loop on the GPU.
template <class Opt, class Options>
void expect_plain_training(int replicas, const Options& options, at::ScalarType type) {
  torch::manual_seed(5);
  MirroredStrategy strategy(on_gpu(replicas));
  auto model = strategy.make([] { return std::make_shared<Net>(); });
  model.to(type);
  auto optimizer = strategy.make_optimizer<Opt>(model, options);
  auto plain = std::make_shared<Net>();
  plain->to(kGpu, type);
  copy_values(model.parameters(), plain->parameters());
  Opt plain_optimizer(plain->parameters(), options);
  for (int step = 0; step < 30; ++step) {
    const Batch batch = gpu_batch(1 + (step * 5) % 13, type);
    plain_optimizer.zero_grad();
    average_loss(loss_per_row(plain->forward(batch.rows), batch.labels), batch.rows.size(0)).backward();
    plain_optimizer.step();
    mirrored_step(strategy, model, optimizer, batch);
  }
  EXPECT_EQ(optimizer.steps(), 30);
  const double allowed = type == at::kDouble ? 1e-10 : 2e-3;
  EXPECT_LT(largest_relative_difference(model.parameters(), plain->parameters()), allowed);
  if (replicas == 1) {
    EXPECT_EQ(first_difference(on_host(model.parameters()), on_host(plain->parameters())), "");
  }
}

template <class Opt, class Options>
void expect_plain_training(int replicas, const Options& options) {
  for (const at::ScalarType type : {at::kFloat, at::kDouble}) {
    SCOPED_TRACE(type);
    expect_plain_training<Opt>(replicas, options, type);
  }
}

struct TwoTypes : torch::nn::Module {
  at::Tensor single = register_parameter("single", at::full({8}, 1.f));
  at::Tensor twice = register_parameter("twice", at::full({8}, 1.0, at::kDouble));
};

/// Lockstep's kernels step the first, LibTorch's optimizer the second.
TEST_P(GpuTraining, ReadingTheStateChangesNoCountOfStepsOfOtherTypes) {
  const auto trained = [&]<class Opt>(const auto& options, bool reads, std::type_identity<Opt>) {
    MirroredStrategy strategy(on_gpu(replicas));
    auto model = strategy.make<TwoTypes>();
    auto optimizer = strategy.make_optimizer<Opt>(model, options);
    for (int i = 0; i < 6; ++i) {
      strategy.run([&] {
        at::Tensor loss = model->single.square().sum();
        if (i > 0) loss = loss.to(at::kDouble) + model->twice.square().sum();
        optimizer.minimize(loss);
      });
      if (reads) optimizer.state();
    }
    return on_host(model.parameters());
  };
  const std::type_identity<torch::optim::Adam> adam;
  const std::type_identity<torch::optim::SGD> sgd;
  EXPECT_EQ(first_difference(trained(AdamOptions(0.1), true, adam), trained(AdamOptions(0.1), false, adam)), "");
  const auto momentum = SGDOptions(0.01).momentum(0.9);
  EXPECT_EQ(first_difference(trained(momentum, true, sgd), trained(momentum, false, sgd)), "");
}

TEST_P(GpuTraining, SgdFollowsThePlainLoop) {
  expect_plain_training<torch::optim::SGD>(replicas, SGDOptions(0.1));
  expect_plain_training<torch::optim::SGD>(replicas, SGDOptions(0.1).momentum(0.9).weight_decay(1e-2));
  expect_plain_training<torch::optim::SGD>(replicas, SGDOptions(0.1).momentum(0.9).dampening(0.3));
  expect_plain_training<torch::optim::SGD>(replicas, SGDOptions(0.05).momentum(0.8).nesterov(true));
}
TEST_P(GpuTraining, AdamFollowsThePlainLoop) {
  expect_plain_training<torch::optim::Adam>(replicas, AdamOptions(0.01));
  expect_plain_training<torch::optim::Adam>(replicas, AdamOptions(0.01).weight_decay(1e-2));
  expect_plain_training<torch::optim::Adam>(replicas, AdamOptions(0.01).amsgrad(true));
}
TEST_P(GpuTraining, AdamWFollowsThePlainLoop) {
  expect_plain_training<torch::optim::AdamW>(replicas, AdamWOptions(0.01));
}
TEST_P(GpuTraining, OtherClassesFollowThePlainLoop) {
  expect_plain_training<torch::optim::RMSprop>(replicas, RMSpropOptions(0.001).momentum(0.9).centered(true));
  expect_plain_training<torch::optim::Adagrad>(replicas, AdagradOptions(0.05).weight_decay(1e-3));
}

TEST_P(GpuTraining, InitialWeightsAreThoseOfCpus) {
  const auto weights = [](const MirroredOptions& options) {
    torch::manual_seed(11);
    MirroredStrategy strategy(options);
    auto model = strategy.make<Net>();
    return on_host(model.parameters());
  };
  EXPECT_EQ(first_difference(weights(on_gpu(replicas)), weights(on_cpus(1))), "");
}

TEST_P(GpuTraining, ReplicasShareWeightsAndHaveTheirOwnBuffers) {
  MirroredStrategy strategy(on_gpu(replicas));
  auto model = strategy.make<SmallNet>();
  const auto places = strategy.run([&] {
    EXPECT_EQ(model->first->weight.device(), kGpu);
    EXPECT_EQ(model->norm->running_mean.device(), kGpu);
    return std::pair{reinterpret_cast<std::int64_t>(model->first->weight.const_data_ptr()),
                     reinterpret_cast<std::int64_t>(model->norm->running_mean.const_data_ptr())};
  });
  for (std::size_t k = 1; k < places.size(); ++k) {
    EXPECT_EQ(places[k].first, places[0].first);
    EXPECT_NE(places[k].second, places[0].second);
  }
  auto optimizer = strategy.make_optimizer<torch::optim::SGD>(model, SGDOptions(0.1));
  mirrored_step(strategy, model, optimizer, gpu_batch(16));
  model.synchronize_buffers();
  const auto means = strategy.run([&] { return model->norm->running_mean.clone(); });
  for (const at::Tensor& mean : means) EXPECT_TRUE(same_bits(mean.cpu(), means[0].cpu()));
}

TEST_P(GpuTraining, SavedTrainingGoesOnToTheBit) {
  const TemporaryFolder folder;
  const std::string path = folder / "training.safetensors";
  torch::manual_seed(31);
  std::vector<Batch> batches;
  for (int i = 0; i < 8; ++i) batches.push_back(gpu_batch(12));
  const auto train = [&](MirroredStrategy& strategy, int from, int to, bool loads, bool saves) {
    torch::manual_seed(32);  // the same initial weights
    auto model = strategy.make<Net>();
    auto optimizer = strategy.make_optimizer<torch::optim::Adam>(model, AdamOptions(0.01));
    if (loads) load(path, model, optimizer);
    for (int i = from; i < to; ++i) mirrored_step(strategy, model, optimizer, batches[static_cast<std::size_t>(i)]);
    if (saves) save(path, model, optimizer);
    return on_host(model.parameters());
  };
  MirroredStrategy whole(on_gpu(replicas)), first(on_gpu(replicas)), second(on_gpu(replicas));
  const auto expected = train(whole, 0, 8, false, false);
  train(first, 0, 4, false, true);
  EXPECT_EQ(first_difference(train(second, 4, 8, true, false), expected), "");
}

TEST_P(GpuTraining, SparseGradientsTrain) {
  MirroredStrategy strategy(on_gpu(replicas));
  auto model = strategy.make([] { return torch::nn::Embedding(torch::nn::EmbeddingOptions(50, 3).sparse(true)); });
  auto optimizer = strategy.make_optimizer<torch::optim::SGD>(model, SGDOptions(1.0));
  const at::Tensor before = model->weight.detach().cpu().clone();
  strategy.run([&] {
    const at::Tensor row = at::full({1}, 7, at::TensorOptions(kGpu).dtype(at::kLong));
    optimizer.minimize(model->forward(row).sum());
  });
  const at::Tensor change = model->weight.detach().cpu().sub(before);
  EXPECT_NEAR(change[7][0].item<double>(), -replicas, 1e-5);
  EXPECT_EQ(change.abs().sum().item<double>(), change[7].abs().sum().item<double>());
}

TEST_P(GpuTraining, SyncBatchNormSeesAllReplicas) {
  const auto statistics = [&](int count) {
    torch::manual_seed(2);
    MirroredStrategy strategy(on_gpu(count));
    auto model = strategy.make([] { return std::make_shared<SmallNet>(); });
    nn::convert_sync_batch_norm(model);
    auto optimizer = strategy.make_optimizer<torch::optim::SGD>(model, SGDOptions(0.1));
    torch::manual_seed(9);
    for (int i = 0; i < 3; ++i) mirrored_step(strategy, model, optimizer, gpu_batch(24));
    return strategy.run([&] { return model->norm->running_mean.clone(); })[0].cpu();
  };
  EXPECT_LT(statistics(replicas).sub(statistics(1)).abs().max().item<double>(), 1e-5);
}

}  // namespace
}  // namespace lockstep
