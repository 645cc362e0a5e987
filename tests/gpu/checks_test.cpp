#include <c10/cuda/CUDAFunctions.h>
#include <gtest/gtest.h>
#include <torch/optim/adam.h>
#include <torch/optim/adamw.h>
#include <torch/optim/sgd.h>
#include <torch/utils.h>

#include <cmath>
#include <limits>
#include <string>

#include "lockstep/base/error.h"
#include "lockstep/nn/grad_scaler.h"
#include "lockstep/nn/mirrored_optimizer.h"
#include "lockstep/strategy/captured_step.h"
#include "tests/gpu/gpu_support.h"
#include "tests/gpu/gpu_training.h"

// Everything between the sum of the gradients and the update; and that nothing waits for the GPU unnecessarily.
namespace lockstep {
namespace {

using torch::optim::AdamOptions;
using torch::optim::AdamWOptions;
using torch::optim::SGDOptions;

class GpuChecks : public testing::TestWithParam<int> {
 protected:
  const int replicas = GetParam();
};
INSTANTIATE_TEST_SUITE_P(Replicas, GpuChecks, testing::Values(1, 2, 3, 4));

/// The result of training, with dropout and everything that may come between sum and update.
template <class Prepare>
std::vector<at::Tensor> trained(const MirroredOptions& options, const Prepare& prepare, int steps = 12) {
  torch::manual_seed(23);
  MirroredStrategy strategy(options);
  auto model = strategy.make<Net>(300, 0.3);
  auto optimizer = strategy.make_optimizer<torch::optim::AdamW>(model, AdamWOptions(0.01));
  prepare(optimizer);
  const at::Device device = strategy.replica_context(0).device();
  for (int step = 0; step < steps; ++step) {
    const Batch batch = random_batch(24);
    mirrored_step(strategy, model, optimizer, Batch{batch.rows.to(device), batch.labels.to(device)});
  }
  return on_host(model.parameters());
}

TEST_P(GpuChecks, TwoRunsAreBitwiseEqualWithDropout) {
  const auto nothing = [](auto&) {};
  const auto first = trained(on_gpu(replicas), nothing);
  for (int again = 0; again < 5; ++again) EXPECT_EQ(first_difference(trained(on_gpu(replicas), nothing), first), "");
}

TEST_P(GpuChecks, ClippingAndChecksFollowTheCpu) {
  const auto checks = [](auto& optimizer) {
    optimizer.set_clip_global_norm(0.05);
    optimizer.set_clip_value(0.01);
    optimizer.set_non_finite_policy(NonFinitePolicy::Raise);
    optimizer.set_digest({.every = 3});
  };
  const auto prepare = [&](auto& optimizer) { checks(optimizer); };
  const auto first = trained(on_gpu(replicas), prepare);
  EXPECT_EQ(first_difference(trained(on_gpu(replicas), prepare), first), "");
}

/// minimize clips without waiting for the GPU; clip_global_norm returns the norm to its caller.
TEST_P(GpuChecks, ClippingThatNobodyWaitsForHasTheSameBits) {
  const auto train = [&](bool waits) {
    torch::manual_seed(4);
    MirroredStrategy strategy(on_gpu(replicas));
    auto model = strategy.make<Net>(3000);
    auto optimizer = strategy.make_optimizer<torch::optim::SGD>(model, SGDOptions(0.1).momentum(0.9));
    if (!waits) optimizer.set_clip_global_norm(0.02);
    for (int step = 0; step < 5; ++step) {
      strategy.run(
          [&](const Batch& mine) {
            const at::Tensor loss = average_loss(loss_per_row(model->forward(mine.rows), mine.labels), 16);
            if (!waits) {
              optimizer.minimize(loss);
              return;
            }
            optimizer.backward(loss);
            optimizer.reduce_gradients();
            EXPECT_GT(optimizer.clip_global_norm(0.02), 0.02);
            optimizer.step();
          },
          split(strategy, gpu_batch(16)));
    }
    return on_host(model.parameters());
  };
  EXPECT_EQ(first_difference(train(false), train(true)), "");
}

TEST_P(GpuChecks, NotFiniteGradientsChangeNothing) {
  MirroredStrategy strategy(on_gpu(replicas));
  auto model = strategy.make<Net>();
  auto optimizer = strategy.make_optimizer<torch::optim::Adam>(model, AdamOptions(0.01));
  const auto before = on_host(model.parameters());
  Batch bad = gpu_batch(8);
  bad.rows[7][3] = std::numeric_limits<float>::infinity();
  optimizer.set_non_finite_policy(NonFinitePolicy::Raise);
  mirrored_step(strategy, model, optimizer, bad);  // no call waits for its result
  try {
    mirrored_step(strategy, model, optimizer, gpu_batch(8));
    ADD_FAILURE() << "nothing was thrown";
  } catch (const FailedPrecondition& e) {
    EXPECT_NE(std::string(e.what()).find("first.weight"), std::string::npos) << e.what();
    const std::string who = "replica " + std::to_string(replicas == 3 ? 2 : replicas - 1);
    EXPECT_NE(std::string(e.what()).find(who), std::string::npos) << e.what();
  }
  mirrored_step(strategy, model, optimizer, bad);
  EXPECT_THROW(optimizer.steps(), FailedPrecondition);
  EXPECT_EQ(optimizer.steps(), 0);
  optimizer.set_non_finite_policy(NonFinitePolicy::SkipStep);
  mirrored_step(strategy, model, optimizer, bad);
  EXPECT_EQ(optimizer.skipped_steps(), 1);
  EXPECT_EQ(first_difference(on_host(model.parameters()), before), "");
  mirrored_step(strategy, model, optimizer, gpu_batch(8));
  EXPECT_EQ(optimizer.steps(), 1);
}

TEST_P(GpuChecks, AScaledLossTrainsAsAnUnscaledOne) {
  const auto train = [&](bool scaled) {
    torch::manual_seed(3);
    MirroredStrategy strategy(on_gpu(replicas));
    auto model = strategy.make<Net>();
    auto optimizer = strategy.make_optimizer<torch::optim::SGD>(model, SGDOptions(0.1).momentum(0.9));
    GradScaler scaler(strategy, {.initial_scale = 1024});
    for (int step = 0; step < 5; ++step) {
      strategy.run(
          [&](const Batch& mine) {
            const at::Tensor loss = average_loss(loss_per_row(model->forward(mine.rows), mine.labels), 16);
            scaled ? optimizer.minimize(loss, scaler) : optimizer.minimize(loss);
          },
          split(strategy, gpu_batch(16)));
    }
    return on_host(model.parameters());
  };
  EXPECT_EQ(first_difference(train(true), train(false)), "");
}

/// A step that overflows is skipped and lowers the scale; good ones raise it. As on CPUs, and without waiting.
TEST_P(GpuChecks, TheScaleFollowsTheGradients) {
  const auto scales = [&](const MirroredOptions& options, bool captures) {
    torch::manual_seed(3);
    MirroredStrategy strategy(options);
    const at::Device device = strategy.replica_context(0).device();
    auto model = strategy.make<Net>();
    auto optimizer = strategy.make_optimizer<torch::optim::Adam>(model, AdamOptions(0.01));
    GradScaler scaler(strategy, {.initial_scale = 1024, .growth_interval = 3});
    const auto train = [&](const Batch& mine) {
      optimizer.minimize(average_loss(loss_per_row(model->forward(mine.rows), mine.labels), 16), scaler);
    };
    auto step = strategy.capture(train);
    std::vector<double> seen;
    for (int i = 0; i < 14; ++i) {
      Batch batch = random_batch(16);
      if (i % 5 == 4) batch.rows[15][0] = std::numeric_limits<float>::infinity();
      const auto parts = split(strategy, Batch{batch.rows.to(device), batch.labels.to(device)});
      if (i == 9) scaler.load_state({.scale = 64});
      captures ? step(parts) : strategy.run(train, parts);
      if (i > 6) seen.push_back(scaler.scale());  // before that the host does not read it
    }
    EXPECT_EQ(step.was_replayed(), captures) << step.reason();
    EXPECT_EQ(optimizer.steps(), 12);
    EXPECT_EQ(optimizer.skipped_steps(), 2);
    return seen;
  };
  const auto expected = scales({.devices = cpus(replicas)}, false);
  EXPECT_EQ(scales(on_gpu(replicas), false), expected);
  EXPECT_EQ(scales(on_gpu(replicas), true), expected);
}

TEST_P(GpuChecks, AccumulatedCallsMakeOneStep) {
  MirroredStrategy strategy(on_gpu(replicas));
  auto model = strategy.make<Net>();
  auto optimizer = strategy.make_optimizer<torch::optim::SGD>(model, SGDOptions(0.1));
  optimizer.set_accumulate(3);
  for (int call = 0; call < 7; ++call) mirrored_step(strategy, model, optimizer, gpu_batch(8));
  EXPECT_EQ(optimizer.steps(), 2);
}

/// Makes LibTorch throw if an operation waits for the GPU.
struct NoWaiting {
  NoWaiting() { c10::cuda::warning_state().set_sync_debug_mode(c10::cuda::SyncDebugMode::L_ERROR); }
  ~NoWaiting() { c10::cuda::warning_state().set_sync_debug_mode(c10::cuda::SyncDebugMode::L_DISABLED); }
};

TEST_P(GpuChecks, AStepDoesNotWaitForTheGpu) {
  MirroredStrategy strategy(on_gpu(replicas));
  auto model = strategy.make<Net>(70, 0.2);
  auto optimizer = strategy.make_optimizer<torch::optim::Adam>(model, AdamOptions(0.01));
  optimizer.set_clip_global_norm(0.1);
  const Batch batch = gpu_batch(24);
  const auto step = [&] {
    const auto losses = strategy.run(
        [&](const Batch& mine) {
          const at::Tensor loss = average_loss(loss_per_row(model->forward(mine.rows), mine.labels), 24);
          optimizer.minimize(loss);
          return loss.detach();
        },
        split(strategy, batch));
    return strategy.reduce(ReduceOp::Sum, losses);
  };
  step();
  at::Tensor last;
  {
    const NoWaiting here;
    for (int i = 0; i < 5; ++i) last = step();
  }
  EXPECT_TRUE(std::isfinite(last.item<double>()));
  EXPECT_EQ(optimizer.steps(), 6);
  const auto expect_no_waiting = [&] {
    const NoWaiting here;
    for (int i = 0; i < 5; ++i) last = step();
  };
  optimizer.set_clip_global_norm(std::nullopt);
  expect_no_waiting();
  optimizer.set_non_finite_policy(NonFinitePolicy::SkipStep);
  expect_no_waiting();
  optimizer.set_non_finite_policy(NonFinitePolicy::Raise);
  optimizer.set_clip_global_norm(0.1);
  expect_no_waiting();
  optimizer.set_accumulate(2);
  expect_no_waiting();
}

}  // namespace
}  // namespace lockstep
