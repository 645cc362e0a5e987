#include <gtest/gtest.h>
#include <torch/optim/adagrad.h>
#include <torch/optim/adam.h>
#include <torch/optim/adamw.h>
#include <torch/optim/rmsprop.h>
#include <torch/optim/sgd.h>
#include <torch/serialize.h>
#include <torch/utils.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <mutex>
#include <sstream>

#include "lockstep/base/error.h"
#include "lockstep/base/logging.h"
#include "lockstep/base/text.h"
#include "lockstep/nn/mirrored_optimizer.h"
#include "lockstep/strategy/mirrored_strategy.h"
#include "tests/support/errors.h"
#include "tests/support/replicas.h"
#include "tests/support/small_net.h"

// Habits from hand-written loops: options, zero_grad before each step, batches without rows.
namespace lockstep {
namespace {

using torch::optim::Adam;
using torch::optim::AdamOptions;
using torch::optim::SGD;
using torch::optim::SGDOptions;

/// The weights are ones, so gradients are easy to predict.
struct HeadAndBody : torch::nn::Module {
  HeadAndBody() {
    head = register_module("head", torch::nn::Linear(1, 1));
    body = register_module("body", torch::nn::Linear(1, 1));
    const at::NoGradGuard no_grad;
    for (auto& parameter : parameters()) parameter.fill_(1.0);
  }
  torch::nn::Linear head{nullptr}, body{nullptr};
};

class Habits : public testing::TestWithParam<int> {
 protected:
  Habits() : strategy({.devices = test_devices(GetParam())}), model(strategy.make<HeadAndBody>()) {
    set_log_severity(Severity::Warning);
    set_log_sink([this](Severity, std::string_view line) {
      const std::lock_guard lock(mutex);
      warnings.emplace_back(line);
    });
  }
  ~Habits() override { set_log_sink({}); }

  /// Loss on the first bias, with a slope of 1 summed over the replicas.
  at::Tensor loss() { return model->head->bias.sum().div(GetParam()); }
  double bias() { return model->head->bias.item<double>(); }

  std::mutex mutex;
  std::vector<std::string> warnings;
  MirroredStrategy strategy;
  MirroredModule<HeadAndBody> model;
};
INSTANTIATE_TEST_SUITE_P(Replicas, Habits, testing::Values(1, 3));

TEST_P(Habits, OptionsThatNoOptimizerCanWorkWithAreRefusedWhenItIsMade) {
  const std::pair<const char*, std::function<void()>> cases[] = {
      {"lr = -5", [&] { strategy.make_optimizer<SGD>(model, -5); }},
      {"lr = nan", [&] { strategy.make_optimizer<SGD>(model, SGDOptions(NAN)); }},
      {"lr = inf",
       [&] {
         strategy.make_optimizer<SGD>(model, {{{"head."}, SGDOptions(0.1)}, {{""}, SGDOptions(INFINITY)}});
       }},
      {"momentum = -1", [&] { strategy.make_optimizer<SGD>(model, SGDOptions(0.1).momentum(-1)); }},
      {"nesterov", [&] { strategy.make_optimizer<SGD>(model, SGDOptions(0.1).nesterov(true)); }},
      {"betas = 1",
       [&] {
         strategy.make_optimizer<Adam>(model, AdamOptions(0.1).betas({0.9, 1.0}));
       }},
      {"eps = -1",
       [&] { strategy.make_optimizer<torch::optim::AdamW>(model, torch::optim::AdamWOptions(0.1).eps(-1)); }},
      {"alpha = -1",
       [&] { strategy.make_optimizer<torch::optim::RMSprop>(model, torch::optim::RMSpropOptions(0.1).alpha(-1)); }},
      {"lr_decay = -1",
       [&] { strategy.make_optimizer<torch::optim::Adagrad>(model, torch::optim::AdagradOptions(0.1).lr_decay(-1)); }},
  };
  for (const auto& [part, call] : cases) {
    const std::string message = message_of<InvalidArgument>(call);
    EXPECT_TRUE(contains(message, part)) << part << " not in " << message;
  }
}

TEST_P(Habits, OptionsChangedToSuchAreRefusedAtTheNextStepAndCanBeMended) {
  auto optimizer = strategy.make_optimizer<SGD>(model, SGDOptions(0.5));
  const auto step = [&] { strategy.run([&] { optimizer.minimize(loss()); }); };
  const auto in_parts = [&] {
    strategy.run([&] {
      optimizer.backward(loss());
      optimizer.reduce_gradients();
      optimizer.step();
    });
  };
  optimizer.options().lr(-5);
  for (const auto& call : std::initializer_list<std::function<void()>>{step, in_parts}) {
    const std::string message = message_of<InvalidArgument>(call);
    EXPECT_TRUE(contains(message, "lr = -5") && contains(message, "parameter group 0")) << message;
  }
  EXPECT_EQ(bias(), 1.0);
  for (const double rate : std::initializer_list<double>{INFINITY, NAN, -1.0}) {
    EXPECT_TRUE(contains(message_of<InvalidArgument>([&] { optimizer.set_learning_rate(rate); }), "learning rate"));
  }
  optimizer.set_learning_rate(0.5);
  step();
  EXPECT_NEAR(bias(), 0.5, 1e-6);
}

TEST_P(Habits, ZeroGradInsideAWindowIsToldOnce) {
  auto optimizer = strategy.make_optimizer<SGD>(model, SGDOptions(0.1));
  optimizer.set_accumulate(2);
  for (int call = 0; call < 6; ++call) {
    strategy.run([&] {
      optimizer.zero_grad();
      optimizer.minimize(loss());
    });
  }
  EXPECT_EQ(optimizer.steps(), 0);
  ASSERT_EQ(warnings.size(), 1u);
  EXPECT_TRUE(contains(warnings[0], "zero_grad") && contains(warnings[0], "1 call of minimize out of 2"))
      << warnings[0];
  strategy.run([&] { optimizer.minimize(loss()); });
  EXPECT_EQ(optimizer.steps(), 1);
}

TEST_P(Habits, ZeroGradOfTheModelBeginsTheWindowAnew) {
  auto optimizer = strategy.make_optimizer<SGD>(model, SGDOptions(1.0));
  optimizer.set_accumulate(2);
  const std::function<void()> ways[] = {[&] { model.zero_grad(); }, [&] { model->zero_grad(); },
                                        [&] { model.zero_grad(/*set_to_none=*/false); },
                                        [&] { model->zero_grad(/*set_to_none=*/false); }};
  for (const auto& zero_grad : ways) {
    for (int call = 0; call < 3; ++call) {
      strategy.run([&] {
        zero_grad();
        EXPECT_FALSE(optimizer.minimize(loss()));
      });
    }
  }
  EXPECT_EQ(bias(), 1.0);
  ASSERT_EQ(warnings.size(), 1u);
  EXPECT_TRUE(contains(warnings[0], "zero_grad() of the model has ended an accumulation window")) << warnings[0];
  EXPECT_TRUE(contains(warnings[0], "1 call of minimize out of 2")) << warnings[0];
  strategy.run([&] { EXPECT_TRUE(optimizer.minimize(loss())); });
  EXPECT_NEAR(bias(), -1.0, 1e-6);
}

TEST_P(Habits, GradientsAddedAfterZeroGradInAWindowAreKept) {
  auto optimizer = strategy.make_optimizer<SGD>(model, SGDOptions(1.0));
  optimizer.set_accumulate(2);
  strategy.run([&] {
    optimizer.minimize(loss());
    model.zero_grad();
    loss().backward();
    EXPECT_TRUE(optimizer.minimize(loss()));
  });
  EXPECT_NEAR(bias(), -1.0, 1e-6);
}

TEST_P(Habits, AReplicaWithNothingButZerosIsInTheSameWindowAsTheOthers) {
  const int last = GetParam() - 1;  // with a single replica, none has zeros
  const auto lopsided = [&] { return loss() * (last > 0 && my_id() == last ? -0.0 : 1.0); };
  const double slope = last > 0 ? static_cast<double>(last) / GetParam() : 1.0;
  auto optimizer = strategy.make_optimizer<SGD>(model, SGDOptions(1.0));
  const auto call = [&](bool is_last, const std::function<void(at::Tensor&)>& change) {
    strategy.run([&] {
      EXPECT_EQ(optimizer.minimize(lopsided()), is_last) << my_id();
      if (model->head->bias.grad().defined()) change(model->head->bias.mutable_grad());
    });
  };
  optimizer.set_accumulate(3);
  const auto halve = [](at::Tensor& gradient) { gradient.mul_(0.5); };
  const auto clear = [](at::Tensor& gradient) { gradient.zero_(); };
  const auto keep = [](at::Tensor&) {};
  call(false, halve);
  call(false, halve);
  call(true, keep);
  EXPECT_NEAR(bias(), 1.0 - 1.75 * slope, 1e-6);
  const auto ended_windows = [&] {
    return std::ranges::count_if(warnings, [](const auto& line) { return contains(line, "has ended"); });
  };
  EXPECT_EQ(ended_windows(), 0);

  call(false, keep);
  call(false, clear);  // as zero_grad does, on all replicas: they agree that two calls are gone
  call(false, keep);
  call(false, keep);
  call(true, keep);
  EXPECT_NEAR(bias(), 1.0 - 4.75 * slope, 1e-6);
  EXPECT_EQ(ended_windows(), 1);

  if (last == 0) return;
  const auto clear_one = [&](at::Tensor& gradient) {
    if (my_id() == 0) gradient.zero_();
  };
  call(false, clear_one);  // replica 1 still has its own, so it was not zero_grad
  call(false, keep);
  call(true, keep);
  EXPECT_NEAR(bias(), 1.0 - 7.75 * slope + 1.0 / GetParam(), 1e-5);
}

TEST_P(Habits, ZeroGradBetweenUpdatesOrAfterAFailureNeedsNoWarning) {
  auto optimizer = strategy.make_optimizer<SGD>(model, SGDOptions(0.1));
  strategy.run([&] {
    optimizer.zero_grad();
    optimizer.minimize(loss());
    optimizer.zero_grad();
  });
  optimizer.set_accumulate(2);
  EXPECT_THROW(strategy.run([&] {
    optimizer.minimize(loss());
    throw std::runtime_error("mine");
  }),
               std::runtime_error);
  strategy.run([&] { optimizer.zero_grad(); });
  for (const auto& warning : warnings) EXPECT_FALSE(contains(warning, "zero_grad")) << warning;
}

TEST_P(Habits, AWindowAtTheEndOfAnEpochCanBeFlushed) {
  auto optimizer = strategy.make_optimizer<SGD>(model, SGDOptions(0.1));
  optimizer.set_accumulate(4);
  for (int call = 0; call < 6; ++call) strategy.run([&] { optimizer.minimize(loss()); });
  EXPECT_NEAR(bias(), 0.6, 1e-6);
  strategy.run([&] {
    optimizer.reduce_gradients();
    optimizer.step();
  });
  EXPECT_EQ(optimizer.steps(), 2);
  EXPECT_NEAR(bias(), 0.4, 1e-6) << "an update with the two calls of the open window";
  EXPECT_NO_THROW(optimizer.state());
  for (int call = 0; call < 3; ++call) strategy.run([&] { optimizer.minimize(loss()); });
  EXPECT_EQ(optimizer.steps(), 2) << "a new window begins";
  EXPECT_TRUE(warnings.empty()) << warnings[0];
}

TEST_P(Habits, AnOpenWindowSaysHowManyCallsAreMissing) {
  auto optimizer = strategy.make_optimizer<SGD>(model, SGDOptions(0.1));
  optimizer.set_accumulate(5);
  for (int call = 0; call < 2; ++call) strategy.run([&] { optimizer.minimize(loss()); });
  const auto message = [&] { return message_of<FailedPrecondition>([&] { optimizer.state(); }); };
  EXPECT_TRUE(contains(message(), "gradients of 2 calls") && contains(message(), "after 3 more calls of minimize"))
      << message();
  optimizer.set_accumulate(1);
  EXPECT_TRUE(contains(message(), "gradients of 2 calls") && contains(message(), "after 1 more call of minimize"))
      << message();
  strategy.run([&] { optimizer.minimize(loss()); });
  EXPECT_EQ(optimizer.steps(), 1);
  EXPECT_NO_THROW(optimizer.state());
}

TEST_P(Habits, AWindowThatAFailedRunHasEndedIsNotWaitedFor) {
  auto optimizer = strategy.make_optimizer<SGD>(model, SGDOptions(0.1));
  optimizer.set_accumulate(3);
  strategy.run([&] { optimizer.minimize(loss()); });
  EXPECT_ANY_THROW(strategy.run([] { throw std::runtime_error("a bad picture"); }));
  EXPECT_NO_THROW(optimizer.state());
  for (int call = 0; call < 3; ++call) strategy.run([&] { optimizer.minimize(loss()); });
  EXPECT_EQ(optimizer.steps(), 1);
}

TEST_P(Habits, ALossThatReachesNoParameterIsToldOnce) {
  auto other = strategy.make<HeadAndBody>();
  auto optimizer = strategy.make_optimizer<SGD>(model, SGDOptions(0.1));
  for (int call = 0; call < 3; ++call) strategy.run([&] { optimizer.minimize(other->head->bias.sum()); });
  ASSERT_EQ(warnings.size(), 1u);
  EXPECT_TRUE(contains(warnings[0], "reaches none") && contains(warnings[0], "'head.weight'")) << warnings[0];
  EXPECT_EQ(bias(), 1.0);
}

TEST_P(Habits, AModelPrintsAsItsModuleDoes) {
  std::ostringstream out;
  out << model;
  const std::string first =
      lockstep::str("MirroredModule of ", GetParam(), GetParam() == 1 ? " replica: " : " replicas: ");
  EXPECT_EQ(out.str().substr(0, first.size()), first) << out.str();
  EXPECT_TRUE(contains(out.str(), "(head): torch::nn::Linear(in_features=1")) << out.str();
  std::ostringstream of_optimizer;
  of_optimizer << strategy.make_optimizer<SGD>(model, 0.5);
  EXPECT_TRUE(contains(of_optimizer.str(), "torch::optim::SGD on ")) << of_optimizer.str();
  EXPECT_TRUE(contains(of_optimizer.str(), ": 0 steps, learning rate 0.5")) << of_optimizer.str();
}

TEST_P(Habits, ZeroGradOfAModelDropsTheCallersGradientsInsideRunAndAllOutside) {
  const auto has_gradient = [&](std::size_t k) { return model.replica(k)->head->bias.grad().defined(); };
  strategy.run([&] {
    loss().backward();
    if (get_replica_context().replica_id_in_sync_group() == 0) model.zero_grad();
  });
  EXPECT_FALSE(has_gradient(0));
  for (std::size_t k = 1; k < model.size(); ++k) EXPECT_TRUE(has_gradient(k));
  model.zero_grad();
  for (std::size_t k = 0; k < model.size(); ++k) EXPECT_FALSE(has_gradient(k));
}

TEST_P(Habits, AModelStaysOnItsReplicasDevices) {
  const torch::Device own = test_device(), other(own.is_cpu() ? torch::kCUDA : torch::kCPU);
  model.to(own.type());
  model.to(own);
  const SeenError seen = error_of([&] { model.to(other); });
  EXPECT_EQ(seen.number, errors::kDevice);
  EXPECT_TRUE(contains(seen.text, lockstep::str("a model cannot be moved to ", other, ": its replicas are on ", own)))
      << seen.text;
  EXPECT_TRUE(contains(seen.parts.help, ".devices = ")) << seen.text;
}

TEST_P(Habits, ForwardOfTheHandleIsTheModules) {
  const auto linear = strategy.make<torch::nn::Linear>(2, 1);
  const at::Tensor x = torch::ones({3, 2});
  EXPECT_TRUE(linear.forward(x).equal(linear->forward(x)));
}

TEST_P(Habits, WeightsThatTorchLoadPutIntoOneReplicaAreNotedWhereTheyAreUsed) {
  std::stringstream file;
  torch::save(module_here(std::make_shared<HeadAndBody>()), file);
  auto module = model.replica(0);
  torch::load(module, file);
  const SeenError seen = error_of([&] { strategy.run([&] { model->head->forward(torch::ones({1, 1})); }); });
  EXPECT_EQ(seen.number, errors::kWrongModule);
  EXPECT_TRUE(contains(seen.text, "'head.weight' has moved to other memory")) << seen.text;
  EXPECT_TRUE(contains(seen.parts.help, "lockstep::load(path, model)")) << seen.text;
}

}  // namespace
}  // namespace lockstep
