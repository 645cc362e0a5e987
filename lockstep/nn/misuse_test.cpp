#include <gtest/gtest.h>
#include <torch/utils.h>

#include <cmath>
#include <functional>

#include "lockstep/base/error.h"
#include "lockstep/base/logging.h"
#include "lockstep/nn/loss.h"
#include "lockstep/nn/mirrored_optimizer.h"
#include "lockstep/nn/test_support.h"
#include "lockstep/strategy/mirrored_strategy.h"

// Wrong use of models, optimizers and scalers: each with its type, its number and a text that names the culprit.
namespace lockstep {
namespace {

using namespace testing_support;
using torch::optim::SGDOptions;

template <class E>
void expect_error(int number, const std::string& part, const std::function<void()>& call) {
  try {
    call();
    ADD_FAILURE() << "no error, expected L" << number << " with '" << part << "'";
  } catch (const E& e) {
    EXPECT_EQ(e.number(), number) << e.what();
    EXPECT_NE(std::string(e.what()).find(part), std::string::npos) << "no '" << part << "' in " << e.what();
  } catch (const std::exception& e) {
    ADD_FAILURE() << "another type, expected L" << number << ": " << e.what();
  }
}

class Misuse : public testing::TestWithParam<int> {
 protected:
  Misuse()
      : strategy({.devices = cpus(GetParam())}),
        model(strategy.make<SmallNet>()),
        optimizer(strategy.make_optimizer<torch::optim::SGD>(model, SGDOptions(0.1))) {
    set_log_severity(Severity::Silent);
  }
  void step() {
    strategy.run([&] { optimizer.minimize(model->forward(torch::ones({2, 9})).sum()); });
  }

  MirroredStrategy strategy;
  MirroredModule<SmallNet> model;
  MirroredOptimizer<torch::optim::SGD> optimizer;
};
INSTANTIATE_TEST_SUITE_P(Replicas, Misuse, testing::Values(1, 2, 4));

TEST_P(Misuse, OfAnOptimizerOrModelOfAnotherStrategy) {
  MirroredStrategy other({.devices = cpus(GetParam())});
  expect_error<InvalidArgument>(errors::kMixedStrategies, "another strategy",
                                [&] { other.make_optimizer<torch::optim::SGD>(model, SGDOptions(0.1)); });
  auto others_model = other.make<SmallNet>();
  EXPECT_THROW(other.run([&] { optimizer.minimize(others_model->forward(torch::ones({2, 9})).sum()); }), Error);
  EXPECT_THROW(other.run([&] { model->forward(torch::ones({2, 9})); }), Error);
  step();  // still fine where it belongs
  EXPECT_EQ(optimizer.steps(), 1);
}

TEST_P(Misuse, OfAModelThatOutlivedItsStrategy) {
  auto short_lived = std::make_unique<MirroredStrategy>(MirroredOptions{.devices = cpus(GetParam())});
  auto orphan = short_lived->make<SmallNet>();
  short_lived.reset();
  expect_error<FailedPrecondition>(errors::kMixedStrategies, "outlived",
                                   [&] { strategy.make_optimizer<torch::optim::SGD>(orphan, SGDOptions(0.1)); });
}

TEST_P(Misuse, OfAModelWithAParameterAddedAfterwards) {
  auto grown = strategy.make<SmallNet>();
  const auto last = static_cast<std::size_t>(GetParam() - 1);
  grown.replica(last)->register_parameter("late", torch::ones({3}));
  expect_error<FailedPrecondition>(errors::kWrongModule, "changed after it was made",
                                   [&] { strategy.make_optimizer<torch::optim::SGD>(grown, SGDOptions(0.1)); });
  for (std::size_t k = 0; k < last; ++k) grown.replica(k)->register_parameter("late", torch::ones({3}));
  expect_error<FailedPrecondition>(errors::kWrongModule, "now has 8",
                                   [&] { strategy.make_optimizer<torch::optim::SGD>(grown, SGDOptions(0.1)); });
}

TEST_P(Misuse, OfAModelWhoseMemoryWasReplacedBetweenSteps) {
  step();
  auto& weight = model.replica(static_cast<std::size_t>(GetParam() - 1))->second->weight;
  weight.set_data(weight.detach().clone());
  expect_error<FailedPrecondition>(errors::kWrongModule, "'second.weight' has other memory", [&] { step(); });
}

TEST_P(Misuse, OfAModelConvertedOnOneReplica) {
  auto converted = strategy.make<SmallNet>();
  converted.replica(0)->to(at::kDouble);
  expect_error<FailedPrecondition>(errors::kWrongModule, "has other memory",
                                   [&] { strategy.make_optimizer<torch::optim::SGD>(converted, SGDOptions(0.1)); });
}

struct OnMeta : torch::nn::Module {
  OnMeta() { register_parameter("nowhere", torch::empty({3}, at::kMeta)); }
};

TEST_P(Misuse, OfAParameterOnTheWrongDevice) {
  expect_error<InvalidArgument>(errors::kDevice, "'nowhere' is on the meta device", [&] { strategy.make<OnMeta>(); });
}

TEST_P(Misuse, OfALossScaleThatIsNotFinite) {
  for (const double scale : std::initializer_list<double>{INFINITY, -INFINITY, NAN, 0.0, -1.0}) {
    expect_error<InvalidArgument>(errors::kNotFinite, "loss scale",
                                  [&] { GradScaler(strategy, {.initial_scale = scale}); });
    GradScaler scaler(strategy);
    expect_error<InvalidArgument>(errors::kNotFinite, "loss scale", [&] { scaler.restore({.scale = scale}); });
    EXPECT_EQ(scaler.scale(), 65536.0);
  }
  expect_error<InvalidArgument>(errors::kBadOption, "GradScaler", [&] { GradScaler(strategy, {.growth = NAN}); });
  expect_error<InvalidArgument>(errors::kBadOption, "GradScaler", [&] { GradScaler(strategy, {.backoff = 1.0}); });
}

TEST_P(Misuse, OfAScalerOfAnotherStrategy) {
  MirroredStrategy other({.devices = cpus(GetParam())});
  GradScaler scaler(other);
  expect_error<InvalidArgument>(errors::kMixedStrategies, "GradScaler", [&] {
    strategy.run([&] { optimizer.minimize(model->forward(torch::ones({2, 9})).sum(), scaler); });
  });
  EXPECT_EQ(scaler.scale(), 65536.0);
}

TEST_P(Misuse, OfOptionsOfAnotherClass) {
  EXPECT_EQ(optimizer.options<SGDOptions>().lr(), 0.1);
  expect_error<InvalidArgument>(errors::kOptimizer, "another class", [&] { optimizer.options<torch::optim::AdamOptions>(); });
  expect_error<InvalidArgument>(errors::kBadOption, "no parameter group 1", [&] { optimizer.options<SGDOptions>(1); });
}

TEST_P(Misuse, OfSettingsInsideOfRun) {
  const std::vector<std::pair<const char*, std::function<void()>>> calls = {
      {"set_learning_rate", [&] { optimizer.set_learning_rate(0.5); }},
      {"set_reduce_op", [&] { optimizer.set_reduce_op(ReduceOp::Mean); }},
      {"set_clip_global_norm", [&] { optimizer.set_clip_global_norm(1.0); }},
      {"set_clip_value", [&] { optimizer.set_clip_value(1.0); }},
      {"set_not_finite", [&] { optimizer.set_not_finite(NotFinite::Raise); }},
      {"accumulate", [&] { optimizer.accumulate(2); }},
      {"set_digest", [&] { optimizer.set_digest({.every = 1}); }},
      {"state", [&] { optimizer.state(); }},
      {"load_state", [&] { optimizer.load_state({}); }},
  };
  for (const auto& [name, call] : calls) {
    expect_error<FailedPrecondition>(errors::kWrongContext, name, [&, &f = call] { strategy.run([&] { f(); }); });
  }
  EXPECT_EQ(optimizer.learning_rate(), 0.1);
}

TEST_P(Misuse, OfTheStateOfAnotherOptimizerClass) {
  auto adam = strategy.make_optimizer<torch::optim::Adam>(model, torch::optim::AdamOptions(0.1));
  strategy.run([&] { adam.minimize(model->forward(torch::ones({2, 9})).sum()); });
  const OptimizerState of_adam = adam.state();
  expect_error<InvalidArgument>(errors::kOptimizer, "'exp_avg'", [&] { optimizer.load_state(of_adam); });
  auto momentum = strategy.make_optimizer<torch::optim::SGD>(model, SGDOptions(0.1).momentum(0.9));
  strategy.run([&] { momentum.minimize(model->forward(torch::ones({2, 9})).sum()); });
  expect_error<InvalidArgument>(errors::kOptimizer, "'step'", [&] { adam.load_state(momentum.state()); });
  EXPECT_EQ(adam.state().at("").at("steps").item<int>(), 1);
}

TEST_P(Misuse, OfPartsOfAStepInTheWrongOrder) {
  const auto in_run = [&](const std::function<void()>& f) { return [this, f] { strategy.run([&] { f(); }); }; };
  expect_error<FailedPrecondition>(errors::kOptimizer, "not been reduced", in_run([&] { optimizer.step(); }));
  expect_error<FailedPrecondition>(errors::kOptimizer, "after the reduction",
                                   in_run([&] { optimizer.clip_global_norm(1.0); }));
  expect_error<FailedPrecondition>(errors::kOptimizer, "after the reduction",
                                   in_run([&] { optimizer.clip_value(1.0); }));
  expect_error<FailedPrecondition>(errors::kOptimizer, "already reduced", in_run([&] {
                                     optimizer.backward(model->forward(torch::ones({2, 9})).sum());
                                     optimizer.reduce_gradients();
                                     optimizer.reduce_gradients();
                                   }));
  strategy.run([&] { optimizer.zero_grad(); });
  expect_error<FailedPrecondition>(errors::kWrongContext, "inside the function given to strategy.run",
                                   [&] { optimizer.zero_grad(); });
  expect_error<InvalidArgument>(errors::kBadOption, "digests", [&] { optimizer.set_digest({.every = -1}); });
  expect_error<InvalidArgument>(errors::kBadOption, "norm must be positive",
                                [&] { optimizer.set_clip_global_norm(NAN); });
  step();
}

}  // namespace
}  // namespace lockstep
