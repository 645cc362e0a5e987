#include <ATen/ops/full.h>
#include <ATen/ops/zeros.h>
#include <gtest/gtest.h>
#include <torch/optim/adam.h>
#include <torch/optim/adamw.h>
#include <torch/optim/rmsprop.h>
#include <torch/optim/sgd.h>
#include <torch/utils.h>

#include <limits>
#include <string>

#include "lockstep/base/error.h"
#include "lockstep/nn/mirrored_optimizer.h"
#include "lockstep/nn/save/save.h"
#include "lockstep/nn/sync_batch_norm.h"
#include "lockstep/strategy/captured_step.h"
#include "tests/gpu/gpu_support.h"
#include "tests/gpu/gpu_training.h"
#include "tests/support/replicas.h"

// Steps recorded as CUDA graphs.
namespace lockstep {
namespace {

class GpuCapture : public testing::TestWithParam<int> {
 protected:
  const int replicas = GetParam();
};
INSTANTIATE_TEST_SUITE_P(Replicas, GpuCapture, testing::Values(1, 2, 3, 4));

/// A model that draws random numbers, its optimizer, and a step.
template <class Opt>
struct Training {
  template <class Options>
  Training(const MirroredOptions& where, const Options& options)
      : strategy(where), model(strategy.make<Net>(70, 0.3)), optimizer(strategy.make_optimizer<Opt>(model, options)) {}

  auto step() {
    return [this](const Batch& mine) {
      const at::Tensor loss = average_loss(loss_per_row(model->forward(mine.rows), mine.labels));
      optimizer.minimize(loss);
      return loss.detach();
    };
  }

  MirroredStrategy strategy;
  MirroredModule<Net> model;
  MirroredOptimizer<Opt> optimizer;
};

/// The result of training, and its losses: captured or not, with `between` called before each step.
template <class Opt, class Options, class Between>
std::vector<at::Tensor> trained(int replicas, const Options& options, bool captures, const Between& between,
                                int steps = 12) {
  torch::manual_seed(19);
  Training<Opt> training(on_gpu(replicas), options);
  auto captured = training.strategy.capture(training.step());
  std::vector<at::Tensor> seen;
  for (int i = 0; i < steps; ++i) {
    between(training, i);
    const auto batch = split(training.strategy, gpu_batch(24));
    const auto losses = captures ? captured(batch) : training.strategy.run(training.step(), batch);
    for (const at::Tensor& loss : losses) seen.push_back(loss);
  }
  if (captures) {
    EXPECT_EQ(captured.reason(), "");
  }
  EXPECT_EQ(training.optimizer.steps(), steps);
  for (const at::Tensor& weights : training.model.parameters()) seen.push_back(weights);
  return on_host(seen);
}

template <class Opt, class Options>
void expect_same_bits(int replicas, const Options& options) {
  const auto nothing = [](auto&, int) {};
  const auto plain = trained<Opt>(replicas, options, false, nothing);
  EXPECT_EQ(first_difference(trained<Opt>(replicas, options, true, nothing), plain), "");
}

TEST_P(GpuCapture, TrainsWithTheBitsOfPlainRuns) {
  expect_same_bits<torch::optim::SGD>(replicas, torch::optim::SGDOptions(0.1));
  expect_same_bits<torch::optim::SGD>(replicas, torch::optim::SGDOptions(0.1).momentum(0.9).dampening(0.2));
  expect_same_bits<torch::optim::Adam>(replicas, torch::optim::AdamOptions(0.01));
  expect_same_bits<torch::optim::AdamW>(replicas, torch::optim::AdamWOptions(0.01));
}

TEST_P(GpuCapture, FollowsTheLearningRate) {
  const auto schedule = [](auto& training, int i) { training.optimizer.set_learning_rate(0.05 / (1 + i)); };
  const torch::optim::AdamWOptions options(0.01);
  const auto plain = trained<torch::optim::AdamW>(replicas, options, false, schedule);
  EXPECT_EQ(first_difference(trained<torch::optim::AdamW>(replicas, options, true, schedule), plain), "");
}

TEST_P(GpuCapture, ClipsAndChecksWithTheBitsOfPlainRuns) {
  const auto checks = [](auto& training, int i) {
    if (i > 0) return;
    training.optimizer.set_clip_global_norm(0.05);
    training.optimizer.set_clip_value(0.01);
    training.optimizer.set_non_finite_policy(NonFinitePolicy::Raise);
  };
  const torch::optim::AdamOptions options(0.01);
  const auto plain = trained<torch::optim::Adam>(replicas, options, false, checks);
  EXPECT_EQ(first_difference(trained<torch::optim::Adam>(replicas, options, true, checks), plain), "");
}

TEST_P(GpuCapture, SettingsThatChangeAreFollowed) {
  const auto change = [](auto& training, int i) {
    if (i == 5) training.optimizer.set_clip_global_norm(0.02);
    if (i == 6) training.model.eval();
    if (i == 9) training.model.train();
  };
  const torch::optim::AdamOptions options(0.01);
  const auto plain = trained<torch::optim::Adam>(replicas, options, false, change, 14);
  EXPECT_EQ(first_difference(trained<torch::optim::Adam>(replicas, options, true, change, 14), plain), "");
}

TEST_P(GpuCapture, MomentumThatIsSwitchedOnIsFollowed) {
  const auto change = [](auto& training, int i) {
    if (i == 6) training.optimizer.options().momentum(0.9).dampening(0.5);
  };
  const torch::optim::SGDOptions options(0.05);
  const auto plain = trained<torch::optim::SGD>(replicas, options, false, change, 14);
  EXPECT_EQ(first_difference(trained<torch::optim::SGD>(replicas, options, true, change, 14), plain), "");
}

TEST_P(GpuCapture, ASeedStartsTheNumbersAgain) {
  const auto seed = [](auto& training, int i) {
    if (i % 5 == 4) training.strategy.set_seed(77);
  };
  const torch::optim::AdamOptions options(0.01);
  const auto plain = trained<torch::optim::Adam>(replicas, options, false, seed, 14);
  EXPECT_EQ(first_difference(trained<torch::optim::Adam>(replicas, options, true, seed, 14), plain), "");
}

TEST_P(GpuCapture, LoadedStateIsFollowed) {
  const auto load = [](auto& training, int i) {
    if (i != 7) return;
    const auto state = training.optimizer.state();
    training.optimizer.load_state(state);
  };
  const torch::optim::AdamOptions options(0.01);
  const auto plain = trained<torch::optim::Adam>(replicas, options, false, load, 14);
  EXPECT_EQ(first_difference(trained<torch::optim::Adam>(replicas, options, true, load, 14), plain), "");
}

TEST_P(GpuCapture, OtherShapesArePlainRuns) {
  torch::manual_seed(19);
  Training<torch::optim::Adam> training(on_gpu(replicas), torch::optim::AdamOptions(0.01));
  auto step = training.strategy.capture(training.step());
  const auto call = [&](std::int64_t rows) {
    step(split(training.strategy, gpu_batch(rows)));
    return step.was_replayed();
  };
  for (const bool expected : {false, false, true, true}) EXPECT_EQ(call(24), expected);
  EXPECT_FALSE(call(12));
  EXPECT_NE(step.reason().find("other shapes"), std::string::npos) << step.reason();
  EXPECT_TRUE(call(24));
  for (const bool expected : {false, false, true}) EXPECT_EQ(call(36), expected);
  EXPECT_EQ(training.optimizer.steps(), 9);
}

TEST_P(GpuCapture, ResultsAreTheCallersOwn) {
  MirroredStrategy strategy(on_gpu(replicas));
  auto step = strategy.capture([](const at::Tensor& x) { return std::pair{x + 1, x * 2}; });
  std::vector<PerReplica<std::pair<at::Tensor, at::Tensor>>> results;
  for (int i = 0; i < 6; ++i) results.push_back(step(at::full({3}, i, kGpu)));
  EXPECT_TRUE(step.was_replayed());
  for (int i = 0; i < 6; ++i) {
    for (const auto& [plus, times] : results[static_cast<std::size_t>(i)]) {
      EXPECT_EQ(plus[0].item<double>(), i + 1);
      EXPECT_EQ(times[2].item<double>(), 2 * i);
    }
  }
}

TEST_P(GpuCapture, ReplicasMeetInsideAGraph) {
  MirroredStrategy strategy(on_gpu(replicas));
  const at::Tensor total = at::zeros({2}, kGpu);
  auto step = strategy.capture([&](const at::Tensor& x) {
    ReplicaContext& here = get_replica_context();
    const at::Tensor sum = here.all_reduce(ReduceOp::Sum, x + here.replica_id_in_sync_group());
    if (here.replica_id_in_sync_group() == 0) total.add_(sum);
    return sum;
  });
  double expected = 0;
  for (int i = 0; i < 6; ++i) {
    const auto sums = step(at::full({2}, i, kGpu));
    const double sum = replicas * i + replicas * (replicas - 1) / 2.0;
    expected += sum;
    for (const at::Tensor& each : sums) EXPECT_EQ(each[1].item<double>(), sum);
  }
  EXPECT_TRUE(step.was_replayed()) << step.reason();
  EXPECT_EQ(total[0].item<double>(), expected);
}

TEST_P(GpuCapture, SyncBatchNormIsRecorded) {
  const auto train = [&](bool captures) {
    torch::manual_seed(2);
    MirroredStrategy strategy(on_gpu(replicas));
    auto model = strategy.make([] { return std::make_shared<SmallNet>(); });
    nn::convert_sync_batch_norm(model);
    auto optimizer = strategy.make_optimizer<torch::optim::SGD>(model, torch::optim::SGDOptions(0.1));
    const auto plain = [&](const Batch& mine) {
      optimizer.minimize(average_loss(loss_per_row(model->forward(mine.rows), mine.labels)));
    };
    auto step = strategy.capture(plain);
    for (int i = 0; i < 6; ++i) {
      const auto batch = split(strategy, gpu_batch(24));
      captures ? step(batch) : strategy.run(plain, batch);
    }
    if (captures) {
      EXPECT_EQ(step.reason(), "");
    }
    auto left = on_host(model.parameters());
    left.push_back(strategy.run([&] { return model->norm->running_mean.clone(); })[0].cpu());
    return left;
  };
  EXPECT_EQ(first_difference(train(true), train(false)), "");
}

/// A step that cannot be recorded reports its reason and trains like a plain one.
template <class Step>
void expect_plain(Training<torch::optim::Adam>& training, const Step& step, const std::string& reason) {
  auto captured = training.strategy.capture(step);
  const auto before = training.optimizer.steps();
  for (int i = 0; i < 8; ++i) captured(split(training.strategy, gpu_batch(24)));
  EXPECT_FALSE(captured.was_replayed());
  EXPECT_NE(captured.reason().find(reason), std::string::npos) << captured.reason();
  EXPECT_EQ(training.optimizer.steps(), before + 8);
}

TEST_P(GpuCapture, StepsThatCannotBeRecordedRunAsTheyAre) {
  torch::manual_seed(19);
  Training<torch::optim::Adam> training(on_gpu(replicas), torch::optim::AdamOptions(0.01));
  const auto minimize = training.step();
  expect_plain(
      training, [&](const Batch& mine) { EXPECT_GT(minimize(mine).item<double>(), 0); }, "");
  expect_plain(
      training,
      [&](const Batch& mine) {
        if (mine.rows.sum().item<double>() != 0) minimize(mine);
      },
      "");
  expect_plain(
      training, [&](const Batch& mine) { return minimize(mine).cpu(); }, "");
  expect_plain(
      training, [&](const Batch& mine) { return minimize(mine).dim(); }, "returns");
  // Later steps are recorded as if nothing had happened.
  auto step = training.strategy.capture(minimize);
  for (int i = 0; i < 4; ++i) step(split(training.strategy, gpu_batch(24)));
  EXPECT_EQ(step.reason(), "");
}

TEST_P(GpuCapture, OtherOptimizersRunAsTheyAre) {
  Training<torch::optim::RMSprop> training(on_gpu(replicas), torch::optim::RMSpropOptions(0.01));
  auto step = training.strategy.capture(training.step());
  for (int i = 0; i < 8; ++i) step(split(training.strategy, gpu_batch(24)));
  EXPECT_NE(step.reason().find("only SGD, Adam and AdamW"), std::string::npos) << step.reason();
  EXPECT_EQ(training.optimizer.steps(), 8);
}

TEST_P(GpuCapture, WhatAStepThrowsIsThrown) {
  Training<torch::optim::Adam> training(on_gpu(replicas), torch::optim::AdamOptions(0.01));
  int calls = 0;
  auto step = training.strategy.capture([&](const Batch& mine) {
    if (get_replica_context().replica_id_in_sync_group() == 0 && ++calls >= 3) throw std::out_of_range("too far");
    training.step()(mine);
  });
  const auto call = [&] { step(split(training.strategy, gpu_batch(24))); };
  call();
  call();
  EXPECT_THROW(call(), std::out_of_range);
  EXPECT_EQ(training.optimizer.steps(), 2);
}

TEST_P(GpuCapture, NotFiniteGradientsAreRaisedAtTheNextCall) {
  Training<torch::optim::Adam> training(on_gpu(replicas), torch::optim::AdamOptions(0.01));
  training.optimizer.set_non_finite_policy(NonFinitePolicy::Raise);
  auto step = training.strategy.capture(training.step());
  const Batch good = gpu_batch(24);
  Batch bad = gpu_batch(24);
  bad.rows[23][3] = std::numeric_limits<float>::infinity();
  for (int i = 0; i < 4; ++i) step(split(training.strategy, good));
  EXPECT_EQ(step.reason(), "");
  const auto before = on_host(training.model.parameters());
  step(split(training.strategy, bad));
  EXPECT_THROW(step(split(training.strategy, good)), FailedPrecondition);
  EXPECT_EQ(first_difference(on_host(training.model.parameters()), before), "");
  EXPECT_EQ(training.optimizer.steps(), 4);
  EXPECT_EQ(training.optimizer.skipped_steps(), 0);
  step(split(training.strategy, good));
  EXPECT_EQ(training.optimizer.steps(), 5);
  EXPECT_NE(first_difference(on_host(training.model.parameters()), before), "");
}

TEST_P(GpuCapture, SkippedStepsDoNotCount) {
  const auto train = [&](bool captures, bool with_bad) {
    torch::manual_seed(8);
    Training<torch::optim::Adam> training(on_gpu(replicas), torch::optim::AdamOptions(0.01));
    training.model.eval();  // no dropout: skipped steps would draw numbers
    training.optimizer.set_non_finite_policy(NonFinitePolicy::SkipStep);
    auto step = training.strategy.capture(training.step());
    for (int i = 0; i < 10; ++i) {
      Batch batch = gpu_batch(24);
      if (i % 3 == 1) batch.rows[5][2] = std::numeric_limits<float>::quiet_NaN();
      if (i % 3 == 1 && !with_bad) continue;
      captures ? step(split(training.strategy, batch))
               : training.strategy.run(training.step(), split(training.strategy, batch));
    }
    EXPECT_EQ(training.optimizer.steps(), 7);
    EXPECT_EQ(training.optimizer.skipped_steps(), with_bad ? 3 : 0);
    return on_host(training.model.parameters());
  };
  const auto expected = train(false, false);
  EXPECT_EQ(first_difference(train(false, true), expected), "");
  EXPECT_EQ(first_difference(train(true, true), expected), "");
}

}  // namespace
}  // namespace lockstep
