#include <ATen/ops/dropout.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/zeros.h>
#include <gtest/gtest.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/dropout.h>
#include <torch/optim/adam.h>
#include <torch/optim/sgd.h>
#include <torch/utils.h>

#include <stdexcept>
#include <string>

#include "lockstep/base/error.h"
#include "lockstep/nn/mirrored_optimizer.h"
#include "lockstep/strategy/captured_step.h"
#include "tests/gpu/gpu_training.h"
#include "tests/support/replicas.h"

// Captured steps that cannot be recorded, that throw, or whose memory is replaced.
namespace lockstep {
namespace {

class GpuCaptureEdges : public testing::TestWithParam<int> {
 protected:
  const int replicas = GetParam();
};
INSTANTIATE_TEST_SUITE_P(Replicas, GpuCaptureEdges, testing::Values(1, 2, 4));

TEST_P(GpuCaptureEdges, AParameterThatHasMovedIsSeen) {
  const auto said = [&](bool captures) -> std::string {
    MirroredStrategy strategy(on_gpu(replicas));
    auto model = strategy.make<Net>(70);
    auto optimizer = strategy.make_optimizer<torch::optim::Adam>(model, torch::optim::AdamOptions(0.01));
    const auto train = [&](const Batch& mine) {
      optimizer.minimize(average_loss(loss_per_row(model->forward(mine.rows), mine.labels)));
    };
    auto step = strategy.capture(train);
    const auto batch = split(strategy, gpu_batch(24));
    const auto call = [&] { captures ? step(batch) : strategy.run(train, batch); };
    for (int i = 0; i < 5; ++i) call();
    EXPECT_EQ(step.was_replayed(), captures) << step.reason();
    at::Tensor weight = model.parameters()[0];
    weight.set_data(weight.detach().clone());  // as torch::load does
    try {
      call();
    } catch (const FailedPrecondition& e) {
      return e.text().what;
    }
    return "";
  };
  EXPECT_NE(said(false), "");
  EXPECT_EQ(said(true), said(false));
}

TEST_P(GpuCaptureEdges, ABufferThatHasMovedIsFollowed) {
  const auto trained = [&](bool captures) {
    torch::manual_seed(4);
    MirroredStrategy strategy(on_gpu(replicas));
    auto model = strategy.make([] { return std::make_shared<SmallNet>(); });
    auto optimizer = strategy.make_optimizer<torch::optim::SGD>(model, torch::optim::SGDOptions(0.1));
    const auto train = [&](const Batch& mine) {
      optimizer.minimize(average_loss(loss_per_row(model->forward(mine.rows), mine.labels)));
    };
    auto step = strategy.capture(train);
    for (int i = 0; i < 9; ++i) {
      if (i == 5) strategy.run([&] { model->norm->running_mean.set_data(at::ones({24}, kGpu)); });
      const auto batch = split(strategy, gpu_batch(24));
      captures ? step(batch) : strategy.run(train, batch);
      EXPECT_EQ(step.was_replayed(), captures && (i >= 2 && i != 5 && i != 6)) << i << ": " << step.reason();
    }
    auto left = on_host(model.parameters());
    for (const at::Tensor& mean : strategy.run([&] { return model->norm->running_mean.clone(); }))
      left.push_back(mean.cpu());
    return left;
  };
  EXPECT_EQ(first_difference(trained(true), trained(false)), "");
}

TEST_P(GpuCaptureEdges, WhatIsWrittenIntoAnArgumentIsNotLost) {
  MirroredStrategy strategy(on_gpu(replicas));
  auto step = strategy.capture([](const at::Tensor& x, at::Tensor total) { total.add_(x.sum()); });
  const auto totals = strategy.values_from_function([](const ValueContext&) { return at::zeros({}, kGpu); });
  const at::Tensor x = at::ones({4}, kGpu);
  for (int i = 1; i < 9; ++i) {
    step(x, totals);
    for (const at::Tensor& total : totals) EXPECT_EQ(total.item<double>(), 4 * i);
  }
  EXPECT_FALSE(step.was_replayed());
  EXPECT_NE(step.reason().find("writes into an argument"), std::string::npos) << step.reason();
}

TEST_P(GpuCaptureEdges, TheModeOfAModelWithoutOptimizerIsFollowed) {
  MirroredStrategy strategy(on_gpu(replicas));
  auto model = strategy.make([] { return torch::nn::Sequential(torch::nn::Dropout(0.5)); });
  auto forward = strategy.capture([&](const at::Tensor& x) { return model->forward(x); });
  const at::Tensor x = at::ones({512}, kGpu);
  const auto has_zeros = [&] {
    const auto results = forward(x);
    bool all = true;
    for (const at::Tensor& result : results) all = all && result.eq(0).any().item<bool>();
    return all;
  };
  for (int i = 0; i < 5; ++i) EXPECT_TRUE(has_zeros());
  EXPECT_TRUE(forward.was_replayed()) << forward.reason();
  model.eval();
  for (int i = 0; i < 5; ++i) EXPECT_FALSE(has_zeros());
  EXPECT_TRUE(forward.was_replayed()) << forward.reason();
  model.train();
  for (int i = 0; i < 5; ++i) EXPECT_TRUE(has_zeros());
}

/// Numbers of the CPU, of the GPU and of LibTorch's own generator, in a step that waits for the GPU.
TEST_P(GpuCaptureEdges, AFailedRecordingDrawsNoNumbers) {
  const auto drawn = [&](bool captures) {
    torch::manual_seed(23);
    MirroredStrategy strategy(on_gpu(replicas));
    const auto draw = [](const at::Tensor& x) {
      const at::Tensor kept = at::dropout(x, 0.5, /*train=*/true).add(at::randn({9}, kGpu));
      const at::Tensor shared = get_replica_context().merge_call([](Strategy&) { return at::randn({9}); });
      return kept.add(at::randn({9}).to(kGpu)).add(shared.to(kGpu));
    };
    auto step = strategy.capture(draw);
    const at::Tensor x = at::ones({9}, kGpu);
    std::vector<at::Tensor> all;
    for (int i = 0; i < 8; ++i) {
      for (const at::Tensor& each : captures ? step(x) : strategy.run(draw, x)) all.push_back(each.cpu());
    }
    EXPECT_FALSE(step.was_replayed());
    if (captures) {
      EXPECT_NE(step.reason(), "");
    }
    EXPECT_FALSE(strategy.last_failure().has_value());
    return all;
  };
  EXPECT_EQ(first_difference(drawn(true), drawn(false)), "");
}

TEST_P(GpuCaptureEdges, DropoutOfRecurrentLayersFollowsTheSeed) {
  const auto drawn = [&](bool captures) {
    torch::manual_seed(29);
    MirroredStrategy strategy(on_gpu(replicas));
    const auto draw = [](const at::Tensor& x) { return at::dropout(x, 0.5, /*train=*/true) + lstm_with_dropout(); };
    auto step = strategy.capture(draw);
    const at::Tensor x = at::ones({16}, kGpu);
    std::vector<at::Tensor> all;
    for (int i = 0; i < 12; ++i) {
      if (i == 6) strategy.set_seed(3);
      for (const at::Tensor& each : captures ? step(x) : strategy.run(draw, x)) all.push_back(each.cpu());
      if (i == 5 || i == 11) {
        EXPECT_EQ(step.was_replayed(), captures) << step.reason();
      }
    }
    return all;
  };
  EXPECT_EQ(first_difference(drawn(true), drawn(false)), "");
}

/// The third call is recorded.
TEST_P(GpuCaptureEdges, WhatAStepThrowsOnceIsThrownOnce) {
  const auto train = [&](bool captures, bool as_number) {
    torch::manual_seed(31);
    MirroredStrategy strategy(on_gpu(replicas));
    auto model = strategy.make<Net>(70, 0.3);
    auto optimizer = strategy.make_optimizer<torch::optim::Adam>(model, torch::optim::AdamOptions(0.01));
    const at::Tensor total = at::zeros({}, kGpu);
    int calls = 0;
    const auto plain = [&](const Batch& mine) {
      const at::Tensor loss = average_loss(loss_per_row(model->forward(mine.rows), mine.labels));
      if (my_id() == replicas - 1) {
        total.add_(loss.detach());
        if (++calls == 3 && as_number) throw 3;
        if (calls == 3) throw std::out_of_range("too far");
      }
      optimizer.minimize(loss);
    };
    auto step = strategy.capture(plain);
    int thrown = 0;
    for (int i = 0; i < 9; ++i) {
      const auto batch = split(strategy, gpu_batch(24));
      const int before = calls;
      try {
        captures ? step(batch) : strategy.run(plain, batch);
      } catch (const std::out_of_range&) {
        ++thrown;
        EXPECT_EQ(calls, before + 1);
      } catch (int number) {
        thrown += number - 2;
        EXPECT_EQ(calls, before + 1);
      }
    }
    EXPECT_EQ(thrown, 1);
    EXPECT_EQ(optimizer.steps(), 8);
    EXPECT_EQ(step.was_replayed(), captures) << step.reason();
    auto left = on_host(model.parameters());
    left.push_back(total.cpu());
    return left;
  };
  EXPECT_EQ(first_difference(train(true, false), train(false, false)), "");
  EXPECT_EQ(first_difference(train(true, true), train(false, true)), "");
}

}  // namespace
}  // namespace lockstep
