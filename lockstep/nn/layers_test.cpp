#include <gtest/gtest.h>
#include <torch/csrc/autograd/generated/variable_factories.h>
#include <torch/nn/modules/batchnorm.h>
#include <torch/nn/modules/linear.h>
#include <torch/optim/adagrad.h>
#include <torch/optim/adam.h>
#include <torch/optim/adamw.h>
#include <torch/optim/rmsprop.h>
#include <torch/optim/sgd.h>
#include <torch/utils.h>

#include "lockstep/base/error.h"
#include "lockstep/base/logging.h"
#include "lockstep/nn/grad_scaler.h"
#include "lockstep/nn/mirrored_optimizer.h"
#include "lockstep/nn/sync_batch_norm.h"
#include "lockstep/strategy/mirrored_strategy.h"
#include "tests/support/replicas.h"

// Batch norm over replicas, scaled losses and saved optimizers.
namespace lockstep {
namespace {

class Layers : public testing::TestWithParam<int> {
 protected:
  void SetUp() override { set_log_severity(Severity::Warning); }
};
INSTANTIATE_TEST_SUITE_P(Replicas, Layers, testing::Values(1, 2, 3, 4));

template <class Norm>
struct NormNet : torch::nn::Module {
  NormNet() : norm(3) { register_module("norm", norm); }
  at::Tensor forward(const at::Tensor& x) { return norm->forward(x); }
  Norm norm;
};

/// Rows of replica k of n: uneven, possibly none for the last ones.
at::Tensor rows_of(const at::Tensor& all, int k, int n) {
  const std::int64_t each = (all.size(0) + n - 1) / n + (n > 1 ? 1 : 0);
  const std::int64_t begin = std::min(all.size(0), k * each);
  return all.slice(0, begin, std::min(all.size(0), begin + each));
}

/// Output, gradients of input and weights, and running statistics equal those of one layer over the whole batch.
template <class Norm>
void expect_whole_batch_norm(int replicas, bool converted) {
  torch::manual_seed(1);
  const at::Tensor x = torch::randn({7, 3, 4, 5}, at::kDouble);
  const at::Tensor outer = torch::randn({7, 3, 4, 5}, at::kDouble);
  auto whole = module_here(torch::nn::BatchNorm2d(3));
  whole->to(at::kDouble);
  MirroredStrategy strategy({.devices = test_devices(replicas)});
  auto model = strategy.make([] { return std::make_shared<NormNet<Norm>>(); });
  model.to(at::kDouble);
  for (std::size_t k = 0; k < model.size(); ++k) model.replica(k)->to(at::kDouble);
  if (converted) {
    EXPECT_EQ(nn::convert_sync_batch_norm(model), 1);
  }
  const at::Tensor whole_x = x.clone().requires_grad_();
  const at::Tensor whole_y = whole->forward(whole_x);
  whole_y.mul(outer).sum().backward();

  const auto results = strategy.run([&] {
    auto& replica = get_replica_context();
    const int k = replica.replica_id_in_sync_group();
    const int n = replica.num_replicas_in_sync();
    const at::Tensor mine = rows_of(x, k, n).clone().requires_grad_();
    const at::Tensor y = model->forward(mine);
    y.mul(rows_of(outer, k, n)).sum().backward();
    const at::Tensor weight_gradient = replica.all_reduce(ReduceOp::Sum, model->norm->weight.grad());
    return std::vector<at::Tensor>{y.detach(), mine.grad(), weight_gradient, model->norm->running_mean,
                                   model->norm->running_var};
  });
  for (int k = 0; k < replicas; ++k) {
    const auto& mine = results[static_cast<std::size_t>(k)];
    EXPECT_TRUE(mine[0].allclose(rows_of(whole_y, k, replicas))) << "output of replica " << k;
    EXPECT_TRUE(mine[1].allclose(rows_of(whole_x.grad(), k, replicas))) << "gradient of replica " << k;
    EXPECT_TRUE(mine[2].allclose(whole->weight.grad())) << "gradient of the weights";
    EXPECT_TRUE(mine[3].allclose(whole->running_mean)) << "running mean of replica " << k;
    EXPECT_TRUE(mine[4].allclose(whole->running_var)) << "running variance of replica " << k;
  }
}

TEST_P(Layers, SyncBatchNormSeesTheWholeBatch) { expect_whole_batch_norm<nn::SyncBatchNorm2d>(GetParam(), false); }
TEST_P(Layers, ConvertedBatchNormSeesTheWholeBatch) {
  expect_whole_batch_norm<torch::nn::BatchNorm2d>(GetParam(), true);
}

/// In eval mode a layer without running statistics normalises with the batch's: each replica with its own, and no
/// replica waits for another.
template <class Norm>
void expect_own_statistics_in_eval(int replicas, bool converted) {
  MirroredStrategy strategy({.devices = test_devices(replicas)});
  auto model = strategy.make<Norm>(torch::nn::BatchNormOptions(3).track_running_stats(false));
  if (converted) {
    EXPECT_EQ(nn::convert_sync_batch_norm(model), 1);
  }
  model.eval();
  const at::Tensor x = torch::randn({4, 3, 2, 2});
  const at::Tensor expected =
      module_here(torch::nn::BatchNorm2d(torch::nn::BatchNormOptions(3).track_running_stats(false)))->forward(x);
  const auto results = strategy.run([&] {
    const int k = get_replica_context().replica_id_in_sync_group();
    return k == 0 ? at::Tensor(expected) : model->forward(x.mul(k));  // replica 0 stays away
  });
  for (const at::Tensor& y : results) EXPECT_TRUE(y.allclose(expected, 1e-3, 1e-3));
}

TEST_P(Layers, BatchNormWithoutRunningStatisticsIsEachReplicasOwnInEval) {
  expect_own_statistics_in_eval<nn::SyncBatchNorm2d>(GetParam(), false);
  expect_own_statistics_in_eval<torch::nn::BatchNorm2d>(GetParam(), true);
}

TEST(SyncBatchNorm, TakesOneRowOfAReplica) {
  MirroredStrategy strategy({.devices = test_devices(3)});
  auto model = strategy.make([] { return nn::SyncBatchNorm1d(3); });
  const auto rows = strategy.run([&] {
    return model->forward(torch::full({1, 3}, static_cast<float>(get_replica_context().replica_id_in_sync_group())));
  });
  EXPECT_NEAR(strategy.gather(rows, 0).mean().item<double>(), 0, 1e-6);
  EXPECT_LT(rows[0][0][0].item<float>(), 0);
}

TEST_P(Layers, ABatchThatNeverWasIsNotCounted) {
  set_log_severity(Severity::Silent);
  MirroredStrategy strategy({.devices = test_devices(GetParam())});
  auto model = strategy.make([] { return std::make_shared<NormNet<nn::SyncBatchNorm2d>>(); });
  EXPECT_THROW(strategy.run([&] {
    if (get_replica_context().replica_id_in_sync_group() == GetParam() - 1)
      throw std::runtime_error("before the layer");
    model->forward(torch::ones({2, 3, 1, 1}));
  }),
               std::runtime_error);
  strategy.run([&] { model->forward(torch::ones({2, 3, 1, 1})); });
  for (std::size_t k = 0; k < model.size(); ++k)
    EXPECT_EQ(model.replica(k)->norm->num_batches_tracked.template item<std::int64_t>(), 1) << "replica " << k;
}

TEST_P(Layers, BuffersAreAveragedOutsideOfReplicas) {
  MirroredStrategy strategy({.devices = test_devices(GetParam())});
  auto model = strategy.make([] { return std::make_shared<NormNet<torch::nn::BatchNorm2d>>(); });
  strategy.run([&] {
    const double value = get_replica_context().replica_id_in_sync_group() + 1.0;
    model->forward(torch::full({2, 3, 1, 1}, value));
  });
  const double expected = 0.1 * (GetParam() + 1) / 2.0;
  EXPECT_NEAR(model.named_buffers()["norm.running_mean"][0].item<double>(), expected, 1e-6);
  model.synchronize_buffers();
  for (std::size_t k = 0; k < model.size(); ++k)
    EXPECT_NEAR(model.replica(k)->norm->running_mean[0].item<double>(), expected, 1e-6);
}

TEST_P(Layers, AScaledLossGivesTheSameStepsAndSkipsInfiniteOnes) {
  MirroredStrategy strategy({.devices = test_devices(GetParam())});
  auto plain = strategy.make([] { return torch::nn::Linear(4, 2); });
  auto scaled = strategy.make([] { return torch::nn::Linear(4, 2); });
  {
    const at::NoGradGuard no_grad;
    for (std::size_t i = 0; i < 2; ++i) scaled.parameters()[i].copy_(plain.parameters()[i]);
  }
  auto of_plain = strategy.make_optimizer<torch::optim::SGD>(plain, torch::optim::SGDOptions(0.1));
  auto of_scaled = strategy.make_optimizer<torch::optim::SGD>(scaled, torch::optim::SGDOptions(0.1));
  GradScaler scaler(strategy, {.initial_scale = 1024, .growth_interval = 3});
  const at::Tensor x = torch::randn({5, 4});
  for (int step = 0; step < 3; ++step) {
    strategy.run([&] {
      of_plain.minimize(plain->forward(x).square().mean());
      EXPECT_TRUE(of_scaled.minimize(scaled->forward(x).square().mean(), scaler));
    });
  }
  for (std::size_t i = 0; i < 2; ++i) EXPECT_TRUE(scaled.parameters()[i].allclose(plain.parameters()[i]));
  EXPECT_EQ(scaler.scale(), 2048);
  const at::Tensor before = scaled.parameters()[0].detach().clone();
  strategy.run([&] {
    const double last =
        get_replica_context().replica_id_in_sync_group() + 1 == get_replica_context().num_replicas_in_sync() ? INFINITY
                                                                                                             : 1.0;
    EXPECT_FALSE(of_scaled.minimize(scaled->forward(x).sum().mul(last), scaler));
  });
  EXPECT_EQ(scaler.scale(), 1024);
  EXPECT_TRUE(scaled.parameters()[0].equal(before));
  EXPECT_THROW(GradScaler(strategy, {.initial_scale = INFINITY}), InvalidArgument);
}

/// Three steps, a save, three more; compared to a new optimizer that continues from the save with another number of
/// replicas.
template <class Opt, class Options>
void expect_resumable(int replicas, const Options& options) {
  const auto step = [](MirroredStrategy& strategy, auto& model, auto& optimizer, int number) {
    const at::Tensor x = torch::full({4, 100}, 0.01 * (number + 1), at::kDouble);
    strategy.run([&] {
      optimizer.minimize(model->forward(x).square().sum().div(4.0 * get_replica_context().num_replicas_in_sync()));
    });
  };
  MirroredStrategy first({.devices = test_devices(replicas), .seed = 3});
  auto model = first.make([] { return torch::nn::Linear(100, 70); });
  model.to(at::kDouble);
  auto optimizer = first.make_optimizer<Opt>(model, options);
  for (int s = 0; s < 3; ++s) step(first, model, optimizer, s);
  const OptimizerState saved = optimizer.state();
  ASSERT_EQ(saved.size(), 3u);  // two parameters, and the number of steps

  MirroredStrategy second({.devices = test_devices(replicas % 4 + 1), .seed = 4});
  auto resumed = second.make([] { return torch::nn::Linear(100, 70); });
  resumed.to(at::kDouble);
  {
    const at::NoGradGuard no_grad;
    for (std::size_t i = 0; i < 2; ++i) resumed.parameters()[i].copy_(model.parameters()[i]);
  }
  auto continued = second.make_optimizer<Opt>(resumed, options);
  continued.load_state(saved);
  EXPECT_EQ(continued.steps(), 3) << "schedules continue where they were";
  for (int s = 3; s < 6; ++s) {
    step(first, model, optimizer, s);
    step(second, resumed, continued, s);
  }
  for (std::size_t i = 0; i < 2; ++i)
    EXPECT_TRUE(resumed.parameters()[i].allclose(model.parameters()[i], 1e-10, 1e-12));
  EXPECT_THROW(continued.load_state({}), InvalidArgument);
}

TEST_P(Layers, OptimizerStateByNameResumesOnAnotherNumberOfReplicas) {
  expect_resumable<torch::optim::SGD>(GetParam(), torch::optim::SGDOptions(0.1).momentum(0.9));
  expect_resumable<torch::optim::Adam>(GetParam(), torch::optim::AdamOptions(0.01).amsgrad(true));
  expect_resumable<torch::optim::AdamW>(GetParam(), torch::optim::AdamWOptions(0.01));
  expect_resumable<torch::optim::RMSprop>(GetParam(), torch::optim::RMSpropOptions(0.01).momentum(0.5).centered(true));
  expect_resumable<torch::optim::Adagrad>(GetParam(), torch::optim::AdagradOptions(0.01));
}

}  // namespace
}  // namespace lockstep
