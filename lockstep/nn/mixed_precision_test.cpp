#include <ATen/autocast_mode.h>
#include <ATen/ops/lstm.h>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>
#include <torch/nn/modules/conv.h>
#include <torch/optim/adam.h>
#include <torch/optim/sgd.h>
#include <torch/utils.h>

#include <cmath>
#include <optional>

#include "lockstep/base/error.h"
#include "lockstep/base/logging.h"
#include "lockstep/nn/autocast.h"
#include "lockstep/nn/loss.h"
#include "lockstep/nn/mirrored_optimizer.h"
#include "lockstep/strategy/mirrored_strategy.h"
#include "tests/support/replicas.h"
#include "tests/support/small_net.h"

// 16-bit types: autocast in and around run, scaled losses in half precision, weights in bfloat16.
namespace lockstep {
namespace {

using torch::optim::SGDOptions;

class MixedPrecision : public testing::TestWithParam<int> {
 protected:
  void SetUp() override { set_log_severity(Severity::Warning); }
};
INSTANTIATE_TEST_SUITE_P(Replicas, MixedPrecision, testing::Values(1, 2, 3, 4));

TEST_P(MixedPrecision, AutocastReachesReplicasFromOutsideAndInside) {
  MirroredStrategy strategy({.devices = test_devices(GetParam())});
  auto model = strategy.make([] { return torch::nn::Linear(8, 8); });
  const at::Tensor x = torch::ones({2, 8});
  const auto type_of_output = [&] { return model->forward(x).scalar_type(); };
  const auto inside = [&] {
    const Autocast autocast(at::kBFloat16);
    return type_of_output();
  };
  const auto expect_all = [&](const auto& types, at::ScalarType expected, const char* what) {
    for (int k = 0; k < GetParam(); ++k)
      EXPECT_EQ(types[static_cast<std::size_t>(k)], expected) << what << ", replica " << k;
  };
  expect_all(strategy.run(type_of_output), at::kFloat, "without");
  expect_all(strategy.run(inside), at::kBFloat16, "inside");
  expect_all(strategy.run(type_of_output), at::kFloat, "after one inside");
  for (const auto dtype : {at::kBFloat16, at::kHalf}) {
    const Autocast autocast(dtype);
    expect_all(strategy.run(type_of_output), dtype, "from outside");
    expect_all(strategy.run(inside), at::kBFloat16, "inside one from outside");
    expect_all(strategy.run(type_of_output), dtype, "from outside, after one inside");
  }
  expect_all(strategy.run(type_of_output), at::kFloat, "after one from outside");
  EXPECT_THROW(Autocast{at::kDouble}, InvalidArgument);
  EXPECT_FALSE(at::autocast::is_autocast_enabled(test_device().type()));
}

TEST_P(MixedPrecision, AutocastSeesWeightsAsTheyAreAfterEachStep) {
  MirroredStrategy strategy({.devices = test_devices(GetParam())});
  auto model = strategy.make([] { return torch::nn::Linear(torch::nn::LinearOptions(1, 1).bias(false)); });
  copy_values({torch::full({1, 1}, 64.0)}, model.parameters());
  auto optimizer = strategy.make_optimizer<torch::optim::SGD>(model, SGDOptions(1.0));
  const at::Tensor one = torch::ones({1, 1});
  const double replicas = GetParam();
  const auto two_steps = [&] {
    std::vector<double> outputs;
    for (int step = 0; step < 2; ++step) {
      const at::Tensor y = model->forward(one);
      outputs.push_back(y.item<double>());
      optimizer.minimize(y.sum().div(replicas));  // the gradient over all replicas is 1
    }
    outputs.push_back(model->forward(one).item<double>());
    return outputs;
  };
  {
    const Autocast around;
    EXPECT_EQ(strategy.run(two_steps)[0], (std::vector<double>{64, 63, 62}));
    EXPECT_EQ(strategy.run(two_steps)[static_cast<std::size_t>(GetParam() - 1)], (std::vector<double>{62, 61, 60}));
  }
  const auto inside = [&] {
    const Autocast autocast;
    return two_steps();
  };
  EXPECT_EQ(strategy.run(inside)[0], (std::vector<double>{60, 59, 58}));
  EXPECT_EQ(strategy.run(inside)[0], (std::vector<double>{58, 57, 56}));
}

template <class Model, class Optimizer>
double train(Strategy& strategy, Model& model, Optimizer& optimizer, const Batch& batch, int steps, bool autocast) {
  double loss = 0;
  for (int step = 0; step < steps; ++step) {
    const auto losses = strategy.run(
        [&](const Batch& mine) {
          std::optional<Autocast> narrow;
          if (autocast) narrow.emplace();
          const at::Tensor mean =
              average_loss(loss_per_row(model->forward(mine.rows).to(at::kFloat), mine.labels), batch.rows.size(0));
          optimizer.minimize(mean);
          return mean.detach();
        },
        share_out(strategy, batch));
    loss = strategy.reduce(ReduceOp::Sum, losses).template item<double>();
  }
  return loss;
}

/// LibTorch keeps one list of cast weights for all threads; leaving an autocast empties it for all of them.
TEST_P(MixedPrecision, AutocastGivesTheSameBitsWhereWeightsAreUsedManyTimes) {
  const auto train = [&] {
    MirroredStrategy strategy({.devices = test_devices(GetParam()), .seed = 6});
    auto model = strategy.make<torch::nn::Linear>(24, 24);
    auto optimizer = strategy.make_optimizer<torch::optim::Adam>(model, 0.01);
    for (int step = 0; step < 4; ++step) {
      strategy.run([&] {
        for (int twice = 0; twice < 2; ++twice) {
          at::Tensor state = torch::randn({5, 24});
          {
            const Autocast autocast(at::kBFloat16);
            for (int time = 0; time < 12; ++time) state = model->forward(state).tanh();
          }
          optimizer.minimize(state.to(at::kFloat).square().sum());
        }
      });
    }
    return copies_of(model.parameters());
  };
  const auto first = train();
  for (int repeat = 0; repeat < 10; ++repeat) ASSERT_EQ(first_difference(train(), first), "") << "repeat " << repeat;
}

TEST_P(MixedPrecision, TheScaleNeverSinksSoFarThatGradientsOverflowWithoutIt) {
  MirroredStrategy strategy({.devices = test_devices(GetParam())});
  GradScaler scaler(strategy);
  strategy.run([&] {
    for (int k = 0; k < 400; ++k) scaler.update(/*was_finite=*/false);
  });
  EXPECT_GT(scaler.scale(), 0.0);
  EXPECT_TRUE(std::isfinite(static_cast<float>(1.0 / scaler.scale())));
}

TEST_P(MixedPrecision, AutocastTrainsFloatWeights) {
  torch::manual_seed(3);
  MirroredStrategy strategy({.devices = test_devices(GetParam())});
  auto model = strategy.make<SmallNet>(32);
  auto optimizer = strategy.make_optimizer<torch::optim::Adam>(model, torch::optim::AdamOptions(0.02));
  const Batch batch = random_batch(24);
  const double before = train(strategy, model, optimizer, batch, 1, true);
  const double after = train(strategy, model, optimizer, batch, 60, true);
  EXPECT_LT(after, 0.5 * before);
  for (const auto& parameter : model.parameters()) EXPECT_EQ(parameter.scalar_type(), at::kFloat);
}

TEST_P(MixedPrecision, WeightsInBfloat16TrainWithTheSameBitsEachTime) {
  const auto run = [&] {
    torch::manual_seed(4);
    MirroredStrategy strategy({.devices = test_devices(GetParam())});
    auto model = strategy.make<SmallNet>(32);
    model.to(at::kBFloat16);
    auto optimizer = strategy.make_optimizer<torch::optim::SGD>(model, SGDOptions(0.1).momentum(0.9));
    optimizer.set_clip_global_norm(5.0);
    const Batch batch = random_batch(24, at::kBFloat16);
    const double before = train(strategy, model, optimizer, batch, 1, false);
    const double after = train(strategy, model, optimizer, batch, 60, false);
    EXPECT_LT(after, 0.6 * before);
    return copies_of(model.parameters());
  };
  const auto first = run();
  EXPECT_EQ(first[0].scalar_type(), at::kBFloat16);
  EXPECT_EQ(first_difference(run(), first), "");
}

struct ConvNet : torch::nn::Module {
  ConvNet() : first(torch::nn::Conv2dOptions(1, 16, 3)), second(torch::nn::Conv2dOptions(16, 4, 3).padding(1)) {
    register_module("first", first);
    register_module("second", second);
  }
  at::Tensor forward(const at::Tensor& x) { return second(first(x).relu()).mean({2, 3}); }

  torch::nn::Conv2d first, second;
};

/// Convolutions on several replicas at once; in bfloat16 some of LibTorch's kernels cannot do that by themselves.
TEST_P(MixedPrecision, ConvolutionsIn16BitsTrainOnAllReplicasAtATime) {
  for (const auto dtype : {at::kBFloat16, at::kHalf}) {
    for (const bool autocast : {true, false}) {
      SCOPED_TRACE(std::string(c10::toString(dtype)) + (autocast ? " by autocast" : " weights"));
      torch::manual_seed(6);
      MirroredStrategy strategy({.devices = test_devices(GetParam())});
      auto model = strategy.make<ConvNet>();
      auto in_float = strategy.make<ConvNet>();
      copy_values(model.parameters(), in_float.parameters());
      if (!autocast) model.to(dtype);
      auto optimizer = strategy.make_optimizer<torch::optim::SGD>(model, SGDOptions(0.1));
      auto of_float = strategy.make_optimizer<torch::optim::SGD>(in_float, SGDOptions(0.1));
      const Batch batch{torch::rand({24, 1, 8, 8}), torch::randint(0, 4, {24}, at::kLong)};
      for (int step = 0; step < 40; ++step) {
        strategy.run(
            [&](const Batch& mine) {
              of_float.minimize(average_loss(loss_per_row(in_float->forward(mine.rows), mine.labels), 24));
              std::optional<Autocast> narrow;
              if (autocast) narrow.emplace(dtype);
              const at::Tensor guess = model->forward(autocast ? mine.rows : mine.rows.to(dtype));
              optimizer.minimize(average_loss(loss_per_row(guess.to(at::kFloat), mine.labels), 24));
            },
            share_out(strategy, batch));
      }
      for (std::size_t i = 0; i < model.parameters().size(); ++i) {
        const double difference =
            model.parameters()[i].to(at::kFloat).sub(in_float.parameters()[i]).abs().max().item<double>();
        EXPECT_LT(difference, 0.05) << "parameter #" << i;
      }
    }
  }
}

/// On Arm, LibTorch's LSTM in bfloat16 gave different results with two threads than with one.
TEST_P(MixedPrecision, RecurrentLayersGiveTheSameBitsOnAllReplicasAtATime) {
  MirroredStrategy strategy({.devices = test_devices(GetParam())});
  const auto hidden = 24;
  std::vector<at::Tensor> values = {torch::randn({7, 16, 20})};
  for (const auto& sizes : std::vector<std::vector<std::int64_t>>{{96, 20}, {96, hidden}, {96}, {96}})
    values.push_back(torch::randn(sizes).mul(0.2));
  const auto compute = [&](at::ScalarType type, bool by_autocast) {
    std::optional<Autocast> autocast;
    if (by_autocast) autocast.emplace(type);
    std::vector<at::Tensor> leaves;
    for (const auto& value : values)
      leaves.push_back(value.clone().to(by_autocast ? at::kFloat : type).requires_grad_());
    const auto state = torch::zeros({1, 16, hidden}, leaves[0].scalar_type());
    const std::vector<at::Tensor> states = {state, state}, weights(leaves.begin() + 1, leaves.end());
    const auto output = std::get<0>(at::lstm(leaves[0], states, weights, true, 1, 0.0, true, false, false));
    std::vector<at::Tensor> results = {output.detach()};
    const auto slopes = torch::autograd::grad({output.to(at::kFloat).square().sum()}, leaves);
    results.insert(results.end(), slopes.begin(), slopes.end());
    return results;
  };
  const auto exact = compute(at::kDouble, false);
  // One replica computes as LibTorch does, which lacks such an LSTM for some CPUs (Arm without bfloat16 instructions).
  const auto compute_both_ways = [&] {
    compute(at::kBFloat16, false);
    compute(at::kBFloat16, true);
  };
  const auto works_in_libtorch = [&] {
    try {
      compute_both_ways();
      return true;
    } catch (const std::exception&) {
      return false;
    }
  };
  if (GetParam() == 1 && !works_in_libtorch()) {
    EXPECT_ANY_THROW(strategy.run(compute_both_ways));
    return;
  }
  strategy.run([&] {
    for (const bool by_autocast : {false, true}) {
      const auto first = compute(at::kBFloat16, by_autocast);
      for (std::size_t i = 0; i < exact.size(); ++i) {
        const auto off = (first[i].to(at::kDouble) - exact[i]).abs().max() / exact[i].abs().max();
        EXPECT_LT(off.item<double>(), 0.06) << i;
      }
      for (int round = 0; round < 8; ++round)
        ASSERT_EQ(first_difference(compute(at::kBFloat16, by_autocast), first), "") << round;
    }
  });
}

/// Gradients of about 2^-30 flow back through half precision, whose smallest number is 2^-24.
TEST_P(MixedPrecision, AScalerKeepsTinyGradientsOfHalfPrecision) {
  MirroredStrategy strategy({.devices = test_devices(GetParam())});
  const double replicas = GetParam();
  const auto step_of_first_weight = [&](bool scaled) {
    auto model = strategy.make([] { return std::make_shared<SmallNet>(6); });
    model.apply([](torch::nn::Module& module) {
      if (auto* norm = module.as<torch::nn::BatchNorm1dImpl>()) norm->eval();
    });
    auto optimizer = strategy.make_optimizer<torch::optim::SGD>(model, SGDOptions(std::ldexp(1.0, 30)));
    GradScaler scaler(strategy, {.initial_scale = 65536.0});
    const at::Tensor before = model->first->weight.detach().clone();
    const Batch batch{torch::ones({2, 9}), torch::zeros({2}, at::kLong)};
    strategy.run([&] {
      const Autocast half(at::kHalf);
      const at::Tensor loss = loss_per_row(model->forward(batch.rows).to(at::kFloat), batch.labels)
                                  .mean()
                                  .mul(std::ldexp(1.0, -30) / replicas);
      scaled ? optimizer.minimize(loss, scaler) : optimizer.minimize(loss);
    });
    return model->first->weight.detach().sub(before).abs().max().item<double>();
  };
  EXPECT_EQ(step_of_first_weight(false), 0.0) << "gradients do not vanish: this test is blind";
  EXPECT_GT(step_of_first_weight(true), 1e-3);
}

TEST_P(MixedPrecision, APartwiseStepWithAScalerIsThatOfMinimize) {
  const auto train_once = [&](bool in_parts) {
    torch::manual_seed(3);
    MirroredStrategy strategy({.devices = test_devices(GetParam())});
    auto model = strategy.make<SmallNet>(16);
    auto optimizer = strategy.make_optimizer<torch::optim::SGD>(model, SGDOptions(0.05).momentum(0.9));
    optimizer.set_clip_global_norm(0.3);
    GradScaler scaler(strategy, {.initial_scale = std::ldexp(1.0, 30), .growth_interval = 3});
    const Batch batch = random_batch(16);
    for (int step = 0; step < 30; ++step) {
      strategy.run(
          [&](const Batch& mine) {
            const Autocast half(at::kHalf);
            const at::Tensor loss =
                average_loss(loss_per_row(model->forward(mine.rows).to(at::kFloat), mine.labels), 16);
            if (!in_parts) return optimizer.minimize(loss, scaler);
            optimizer.backward(loss, scaler);
            EXPECT_THROW(optimizer.unscale(scaler), FailedPrecondition);
            optimizer.reduce_gradients();
            if (!optimizer.unscale(scaler)) return false;
            EXPECT_THROW(optimizer.unscale(scaler), FailedPrecondition);
            optimizer.clip_global_norm(0.3);
            optimizer.step();
            return true;
          },
          share_out(strategy, batch));
    }
    EXPECT_GT(optimizer.skipped_steps(), 0) << "nothing overflows: this test is blind";
    EXPECT_GT(optimizer.steps(), 5);
    auto outcome = copies_of(model.parameters());
    outcome.push_back(torch::tensor({scaler.scale(), static_cast<double>(optimizer.skipped_steps())}));
    return outcome;
  };
  EXPECT_EQ(first_difference(train_once(true), train_once(false)), "");
}

/// The scale changes in the middle of an accumulate window, because another optimizer uses the same scaler.
TEST_P(MixedPrecision, OneScalerServesAnOptimizerThatAccumulatesAndOneThatDoesNot) {
  const auto train_once = [&](double growth) {
    torch::manual_seed(3);
    MirroredStrategy strategy({.devices = test_devices(GetParam())});
    auto model = strategy.make<SmallNet>(16), other = strategy.make<SmallNet>(16);
    auto optimizer = strategy.make_optimizer<torch::optim::SGD>(model, SGDOptions(0.05));
    auto of_other = strategy.make_optimizer<torch::optim::SGD>(other, SGDOptions(0.05));
    optimizer.set_accumulate(2);
    GradScaler scaler(strategy, {.initial_scale = 2.0, .growth = growth, .growth_interval = 1});
    const Batch batch = random_batch(16);
    for (int step = 0; step < 6; ++step) {
      strategy.run(
          [&](const Batch& mine) {
            optimizer.minimize(average_loss(loss_per_row(model->forward(mine.rows), mine.labels), 32), scaler);
            of_other.minimize(average_loss(loss_per_row(other->forward(mine.rows), mine.labels), 16), scaler);
          },
          share_out(strategy, batch));
    }
    EXPECT_EQ(scaler.scale() > 2.0, growth > 1.0);
    return copies_of(model.parameters());
  };
  // Scales are powers of two: they leave no trace in float32.
  EXPECT_EQ(first_difference(train_once(2.0), train_once(1.0)), "");
}

TEST_P(MixedPrecision, UnscalingUsesTheScaleOfTheLoss) {
  MirroredStrategy strategy({.devices = test_devices(GetParam())});
  auto first = strategy.make<torch::nn::Linear>(1, 1), second = strategy.make<torch::nn::Linear>(1, 1);
  auto of_first = strategy.make_optimizer<torch::optim::SGD>(first, SGDOptions(1.0));
  auto of_second = strategy.make_optimizer<torch::optim::SGD>(second, SGDOptions(1.0));
  GradScaler scaler(strategy, {.initial_scale = 1024.0, .growth_interval = 1});
  const double before = second.parameters()[1].item<double>();
  const double replicas = GetParam();
  strategy.run([&] {
    of_first.backward(first->bias.sum() / replicas, scaler);
    of_second.backward(second->bias.sum() / replicas, scaler);
    of_first.reduce_gradients();
    of_second.reduce_gradients();
    EXPECT_THROW(of_first.step(), FailedPrecondition) << "still scaled";
    if (of_first.unscale(scaler)) of_first.step();
    if (of_second.unscale(scaler)) of_second.step();
  });
  EXPECT_NEAR(second.parameters()[1].item<double>(), before - 1.0, 1e-6);
  EXPECT_THROW(strategy.run([&] {
    of_first.backward(first->bias.sum());
    of_first.reduce_gradients();
    of_first.unscale(scaler);
  }),
               FailedPrecondition)
      << "not scaled";
}

TEST_P(MixedPrecision, TheScaleSinksUntilHalfPrecisionHoldsTheGradientsAndGrowsAgain) {
  MirroredStrategy strategy({.devices = test_devices(GetParam())});
  auto model = strategy.make<SmallNet>(16);
  auto optimizer = strategy.make_optimizer<torch::optim::SGD>(model, SGDOptions(0.05));
  GradScaler scaler(strategy, {.initial_scale = std::ldexp(1.0, 40), .growth_interval = 4});
  torch::manual_seed(8);
  const Batch batch = random_batch(16);
  int updates = 0;
  for (int step = 0; step < 60; ++step) {
    const auto updated = strategy.run(
        [&](const Batch& mine) {
          const Autocast half(at::kHalf);
          return optimizer.minimize(
              average_loss(loss_per_row(model->forward(mine.rows).to(at::kFloat), mine.labels), 16), scaler);
        },
        share_out(strategy, batch));
    for (int k = 1; k < GetParam(); ++k)
      ASSERT_EQ(updated[static_cast<std::size_t>(k)], updated[0]) << "step " << step << ", replica " << k;
    updates += updated[0];
  }
  EXPECT_GT(updates, 10);
  EXPECT_LT(updates, 60);
  EXPECT_EQ(optimizer.steps(), updates);
  EXPECT_EQ(optimizer.skipped_steps(), 60 - updates);
  EXPECT_LT(scaler.scale(), std::ldexp(1.0, 40));
  for (const auto& parameter : model.parameters()) EXPECT_TRUE(parameter.isfinite().all().item<bool>());
}

}  // namespace
}  // namespace lockstep
