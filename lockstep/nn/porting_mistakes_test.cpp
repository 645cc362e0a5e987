#include <ATen/Functions.h>
#include <c10/core/InferenceMode.h>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>
#include <torch/nn/modules/batchnorm.h>
#include <torch/nn/modules/linear.h>
#include <torch/optim/adam.h>
#include <torch/optim/adamw.h>
#include <torch/optim/lbfgs.h>
#include <torch/optim/rmsprop.h>
#include <torch/optim/sgd.h>

#include <functional>
#include <stdexcept>
#include <string>
#include <vector>

#include "lockstep/nn/grad_scaler.h"
#include "lockstep/nn/loss.h"
#include "lockstep/nn/mirrored_optimizer.h"
#include "lockstep/nn/save/save.h"
#include "tests/support/expect_error.h"
#include "tests/support/logged_lines.h"
#include "tests/support/one_weight.h"
#include "tests/support/replicas.h"
#include "tests/support/temporary_folder.h"

// Typical mistakes when porting LibTorch programs.
namespace lockstep {
namespace {

using torch::optim::SGD;
using torch::optim::SGDOptions;

class PortingMistakes : public OneWeightTest {};
INSTANTIATE_TEST_SUITE_P(Replicas, PortingMistakes, testing::Values(1, 2, 3));

TEST_P(PortingMistakes, ASeedAfterTheStrategyReachesInitialWeights) {
  const LoggedLines lines;
  const auto weights = [&] { return strategy.make([] { return torch::nn::Linear(3, 2); })->weight.clone(); };
  at::manual_seed(4);
  const at::Tensor first = weights();
  EXPECT_FALSE(first.equal(weights()));
  at::manual_seed(4);
  EXPECT_TRUE(first.equal(weights()));
  strategy.set_seed(4);
  EXPECT_TRUE(first.equal(weights()));
  EXPECT_EQ(lines.count("manual_seed"), 0);
}

TEST_P(PortingMistakes, ALossThatIsScaledAlreadyIsRefused) {
  GradScaler scaler(strategy);
  const auto loss = [&] { return model->forward(torch::ones({1})).sum(); };
  const std::pair<const char*, std::function<void()>> calls[] = {
      {"minimize", [&] { optimizer.minimize(scaler.scaled(loss())); }},
      {"minimize with the scaler", [&] { optimizer.minimize(scaler.scaled(loss()), scaler); }},
      {"backward", [&] { optimizer.backward(scaler.scaled(loss()), scaler); }}};
  for (const auto& [name, call] : calls)
    expect_error([&] { strategy.run(call); }, Code::FailedPrecondition, errors::kOptimizer,
                 {"multiplied by the scale already", "minimize(loss, scaler)"}, name);
  EXPECT_EQ(weight_of(model), 1.0);
  strategy.run([&] {
    scaler.scaled(loss());
    EXPECT_TRUE(optimizer.minimize(loss(), scaler)) << "another loss";
  });
}

TEST_P(PortingMistakes, ParametersOfTheHandleAreTheCallingReplicas) {
  strategy.run([&] {
    EXPECT_TRUE(model.parameters()[0].is_same(model->w)) << my_id();
    const auto loss = (my_id() + 1.0) * model->forward(torch::ones({1})).sum();
    optimizer.apply_gradients(torch::autograd::grad({loss}, model.parameters()));
  });
  EXPECT_EQ(weight_of(model), 1.0 - replicas() * (replicas() + 1) / 2.0);
  EXPECT_TRUE(model.parameters()[0].is_same(model.replica(0)->w));
}

struct TwoLayers : torch::nn::Module {
  TwoLayers() {
    for (const char* name : {"fc1", "fc10", "fc"}) register_parameter(name, torch::ones({1}));
  }
};

TEST_P(PortingMistakes, OneRateForGroupsOfDifferentRatesIsWarnedOf) {
  auto net = strategy.make<TwoLayers>();
  auto of_groups = strategy.make_optimizer<SGD>(
      net, std::vector<ParameterGroup<SGDOptions>>{{{"fc1"}, SGDOptions(0.5)}, {{""}, SGDOptions(0.0)}});
  const LoggedLines lines;
  of_groups.set_learning_rate(0.25, 0);
  EXPECT_EQ(of_groups.learning_rate(0), 0.25);
  EXPECT_EQ(of_groups.learning_rate(1), 0.0);
  EXPECT_EQ(lines.lines().size(), 0u);
  for (int i = 0; i < 2; ++i) of_groups.set_learning_rate(0.125);
  EXPECT_EQ(of_groups.learning_rate(1), 0.125);
  EXPECT_EQ(lines.count("group 0 had 0.25 and group 1 had 0"), 1);
  EXPECT_EQ(lines.count("set_learning_rate(rate, group)"), 1);
  expect_error([&] { of_groups.set_learning_rate(1.0, 2); }, Code::InvalidArgument, errors::kBadOption,
               {"no parameter group 2"});
}

TEST_P(PortingMistakes, APrefixIsAWholePartOfAName) {
  auto net = strategy.make<TwoLayers>();
  auto of_groups = strategy.make_optimizer<SGD>(
      net, std::vector<ParameterGroup<SGDOptions>>{{{"fc1"}, SGDOptions(1.0)}, {{"fc10", "fc"}, SGDOptions(0.0)}});
  strategy.run([&] {
    at::Tensor loss = torch::zeros({});
    for (const auto& parameter : net->parameters()) loss = loss + parameter.sum();
    of_groups.minimize(loss / replicas());
  });
  const auto named = net.named_parameters();
  EXPECT_NEAR(named["fc1"].item<double>(), 0.0, 1e-6);
  EXPECT_EQ(named["fc10"].item<double>(), 1.0);
  expect_error(
      [&] {
        strategy.make_optimizer<SGD>(net, std::vector<ParameterGroup<SGDOptions>>{{{"f"}, SGDOptions(1.0)}});
      },
      Code::InvalidArgument, errors::kOptimizer, {"holds no parameter", "whole parts"});
}

TEST_P(PortingMistakes, EveryKindOfChangedGradientIsWarnedOfOnItsOwn) {
  const LoggedLines lines;
  const auto loss = [&] { return model->forward(torch::ones({1})).sum(); };
  strategy.run([&] { loss().backward(); });
  strategy.run([&] { optimizer.minimize(loss()); });
  EXPECT_EQ(lines.count("before the step's backward"), 1);
  strategy.run([&] {
    optimizer.backward(loss());
    model->w.mutable_grad().mul_(0.5);
    optimizer.reduce_gradients();
    optimizer.step();
  });
  EXPECT_EQ(lines.count("between the optimizer's backward and its step"), replicas() > 1 ? 1 : 0);
}

class MyLbfgs : public torch::optim::LBFGS {
 public:
  using LBFGS::LBFGS;
};

TEST_P(PortingMistakes, AClassDerivedFromLbfgsIsRefusedLikeIt) {
  const SeenError seen = error_of([&] { strategy.make_optimizer<MyLbfgs>(model, torch::optim::LBFGSOptions(1.0)); });
  EXPECT_TRUE(contains(seen.text, "LBFGS cannot be mirrored")) << seen.text;
}

TEST_P(PortingMistakes, AFileOfWhichNothingFitsIsRefusedAlsoIfNotStrict) {
  const TemporaryFolder folder;
  const std::string path = folder.path() / "other.safetensors";
  auto net = strategy.make<TwoLayers>();
  save(path, net);
  const SeenError seen = error_of([&] { load(path, model, {.strict = false}); });
  EXPECT_TRUE(contains(seen.text, "holds nothing that fits")) << seen.text;
  EXPECT_TRUE(contains(seen.text, "load_tensors")) << seen.text;
}

struct Norm : torch::nn::Module {
  Norm() { norm = register_module("norm", torch::nn::BatchNorm1d(3)); }
  at::Tensor forward(const at::Tensor& x) { return norm->forward(x); }
  torch::nn::BatchNorm1d norm = nullptr;
};

TEST_P(PortingMistakes, AModelUsedOutsideOfRunWithStatisticsOfOneReplicaIsWarnedOf) {
  const bool are_several = replicas() > 1;
  const auto x = [](double shift) { return torch::arange(12.0).reshape({4, 3}).to(torch::kFloat) + shift; };
  {
    auto net = strategy.make<Norm>();
    const LoggedLines lines;
    for (int i = 0; i < 2; ++i) net(x(0));
    EXPECT_EQ(lines.count("outside of run in train mode"), are_several ? 1 : 0);
  }
  {
    auto net = strategy.make<Norm>();
    const LoggedLines lines;
    strategy.run([&] { net->forward(x(my_id())); });
    net.eval();
    for (int i = 0; i < 2; ++i) net.forward(x(0));
    EXPECT_EQ(lines.count("synchronize_buffers()"), are_several ? 1 : 0);
  }
  {
    auto net = strategy.make<Norm>();
    const LoggedLines lines;
    strategy.run([&] { net->forward(x(my_id())); });
    net.synchronize_buffers();
    net.eval();
    net(x(0));
    model(torch::ones({1}));  // has no buffers
    EXPECT_EQ(lines.lines().size(), 0u);
  }
}

TEST_P(PortingMistakes, TheSizeOfOneBatchInAWindowIsWarnedOf) {
  optimizer.set_accumulate(2);
  const auto batch = strategy.split(torch::ones({12}));
  const auto count = [&](const std::function<at::Tensor(const at::Tensor&)>& loss_of) {
    const LoggedLines lines;
    for (int call = 0; call < 4; ++call)
      strategy.run([&](const at::Tensor& x) { optimizer.minimize(loss_of(model->forward(x))); }, batch);
    return lines.count("covers one batch, and set_accumulate(2) adds up the gradients of several");
  };
  EXPECT_EQ(count([](const at::Tensor& losses) { return average_loss(losses, 24); }), 0);
  EXPECT_EQ(count([](const at::Tensor& losses) { return average_loss(losses, 12) / 2; }), 0);
  strategy.run(
      [&](const at::Tensor& x) {
        for (int of_two = 0; of_two < 2; ++of_two) optimizer.minimize(average_loss(model->forward(x), 12));
      },
      batch);
  EXPECT_EQ(count([](const at::Tensor& losses) { return average_loss(losses, 12) + average_loss(losses, 24); }), 1);
  EXPECT_EQ(count([](const at::Tensor& losses) { return average_loss(losses, 12); }), 0) << "once";
}

TEST_P(PortingMistakes, AMeanOverReplicasOfSharesIsWarnedOf) {
  optimizer.set_reduce_op(ReduceOp::Mean);
  const LoggedLines lines;
  const auto batch = strategy.split(torch::ones({12}));
  for (int runs = 0; runs < 2; ++runs)
    strategy.run([&](const at::Tensor& x) { optimizer.minimize(average_loss(model->forward(x))); }, batch);
  EXPECT_EQ(lines.count("Leave the reduction at ReduceOp::Sum"), replicas() > 1 ? 1 : 0);
}

TEST_P(PortingMistakes, ClippingThatOnlyMinimizeDoesIsWarnedOf) {
  optimizer.set_clip_global_norm(0.5);
  const LoggedLines lines;
  const auto step = [&](bool clips) {
    strategy.run([&] {
      optimizer.backward(model->forward(torch::ones({1})).sum());
      optimizer.reduce_gradients();
      if (clips) optimizer.clip_global_norm(0.5);
      optimizer.step();
    });
  };
  step(true);
  EXPECT_EQ(lines.count("these gradients are not clipped"), 0);
  for (int steps = 0; steps < 2; ++steps) step(false);
  EXPECT_EQ(lines.count("these gradients are not clipped"), 1);
}

TEST_P(PortingMistakes, TheGradientsOfAnotherOptimizersScaledLossAreScaled) {
  auto head = strategy.make<OneWeight>();
  auto of_head = strategy.make_optimizer<SGD>(head, 0.5);
  GradScaler scaler(strategy);
  const auto step = [&](bool unscales) {
    strategy.run([&] {
      const at::Tensor loss =
          (head->forward(torch::ones({1})) * (model->forward(torch::ones({1})) + 3)).sum() / replicas();
      optimizer.backward(loss, scaler);
      optimizer.reduce_gradients();
      of_head.reduce_gradients();
      if (unscales) of_head.unscale(scaler);
      of_head.step();
      optimizer.zero_grad();
    });
  };
  expect_error([&] { step(false); }, Code::FailedPrecondition, errors::kOptimizer, {"unscale(scaler)"});
  strategy.run([&] {
    optimizer.zero_grad();
    of_head.zero_grad();
  });
  step(true);
  EXPECT_EQ(weight_of(head), 1.0 - 0.5 * 4);
}

TEST_P(PortingMistakes, TheGradientsOfALossThatTheProgramHasScaledAreScaled) {
  GradScaler scaler(strategy);
  const auto step = [&](bool unscales) {
    strategy.run([&] {
      optimizer.zero_grad();
      scaler.scaled(model->forward(torch::ones({1})).sum() / (4 * replicas())).backward();
      optimizer.reduce_gradients();
      if (unscales) optimizer.unscale(scaler);
      optimizer.step();
    });
  };
  expect_error([&] { step(false); }, Code::FailedPrecondition, errors::kOptimizer, {"unscale(scaler)"});
  EXPECT_EQ(weight_of(model), 1.0);
  step(true);
  EXPECT_EQ(weight_of(model), 0.75);
}

TEST_P(PortingMistakes, GradientsThatMayBeOfOneOfTwoScalesAreRefused) {
  auto other = strategy.make<OneWeight>();
  auto of_other = strategy.make_optimizer<SGD>(other, 1.0);
  GradScaler small(strategy, {.initial_scale = 16});
  GradScaler large(strategy, {.initial_scale = 1024});
  const auto of = [&](const auto& net) { return net->forward(torch::ones({1})).sum() / (4 * replicas()); };
  strategy.run([&] {
    small.scaled(of(other)).item<double>();  // for a log
    large.scaled(of(model)).backward();
    optimizer.reduce_gradients();
    optimizer.unscale(large);
    optimizer.step();
  });
  EXPECT_EQ(weight_of(model), 0.75);
  const auto by_hand = [&] {
    small.scaled(of(model)).backward();
    large.scaled(of(other)).backward();
  };
  const auto by_another_optimizer = [&] {
    small.scaled(of(model)).backward();
    of_other.backward(of(other), large);
  };
  for (const std::function<void()>& go_backward : std::vector<std::function<void()>>{by_hand, by_another_optimizer}) {
    const auto step = [&] {
      optimizer.zero_grad();
      of_other.zero_grad();
      go_backward();
      optimizer.reduce_gradients();
    };
    expect_error([&] { strategy.run(step); }, Code::FailedPrecondition, errors::kOptimizer,
                 {"different scales", "backward(loss, scaler)"});
  }
}

TEST_P(PortingMistakes, ASumOfScaledLossesIsRefused) {
  GradScaler scaler(strategy);
  const auto loss = [&] { return scaler.scaled(model->forward(torch::ones({1})).sum()); };
  expect_error([&] { strategy.run([&] { optimizer.minimize(loss() + loss()); }); }, Code::FailedPrecondition,
               errors::kOptimizer, {"multiplied by the scale already"});
}

TEST_P(PortingMistakes, AModeThatAFailedRunHasLeftIsNoDisagreement) {
  for (int epochs = 0; epochs < 20; ++epochs) {
    EXPECT_THROW(strategy.run([&] {
      model->eval();
      throw std::runtime_error("a bad file");
    }),
                 std::runtime_error);
    strategy.run([&] {
      model->train();
      optimizer.minimize(model->forward(torch::ones({1})).sum());
    });
  }
}

struct Encoded : torch::nn::Module {
  Encoded() { register_buffer("places", torch::ones({2})); }
  at::Tensor forward(const at::Tensor& x) { return x; }
};

TEST_P(PortingMistakes, BuffersThatNothingChangesAreNotWarnedOf) {
  const LoggedLines lines;
  auto constant = strategy.make<Encoded>();
  constant(torch::ones({1}));
  auto with_state = strategy.make<Encoded>();
  with_state.eval();
  strategy.run([&] { with_state->named_buffers()["places"].fill_(my_id()); });
  strategy.run([&] { with_state->forward(torch::ones({1})); });
  EXPECT_EQ(lines.lines().size(), 0u);
}

template <class Optimizer, class Options>
void expect_refused_after_a_step(Strategy& strategy, const char* missing, Options& (*switch_on)(Options&)) {
  auto model = strategy.make<OneWeight>();
  auto optimizer = strategy.make_optimizer<Optimizer>(model, Options(0.125));
  const auto step = [&] {
    strategy.run([&] { optimizer.minimize(model->forward(torch::ones({1})).sum()); });
    return weight_of(model);
  };
  const double before = step();
  const Options off = optimizer.options();
  switch_on(optimizer.options());
  for (int twice = 0; twice < 2; ++twice) {
    expect_error(step, Code::InvalidArgument, errors::kBadOption, {"was switched on", "'w' has no", missing});
    EXPECT_EQ(weight_of(model), before);
  }
  optimizer.options() = off;
  EXPECT_LT(step(), before) << "nothing is torn";

  auto from_the_start = strategy.make_optimizer<Optimizer>(model, Options(0.125));
  switch_on(from_the_start.options());
  for (int steps = 0; steps < 2; ++steps)
    strategy.run([&] { from_the_start.minimize(model->forward(torch::ones({1})).sum()); });
}

TEST_P(PortingMistakes, AnOptionThatTheStateHasNothingForIsRefusedBeforeAnythingChanges) {
  using torch::optim::AdamOptions;
  using torch::optim::AdamWOptions;
  using torch::optim::RMSpropOptions;
  expect_refused_after_a_step<torch::optim::Adam, AdamOptions>(
      strategy, "max_exp_avg_sq", [](AdamOptions& options) -> AdamOptions& { return options.amsgrad(true); });
  expect_refused_after_a_step<torch::optim::AdamW, AdamWOptions>(
      strategy, "max_exp_avg_sq", [](AdamWOptions& options) -> AdamWOptions& { return options.amsgrad(true); });
  expect_refused_after_a_step<torch::optim::RMSprop, RMSpropOptions>(
      strategy, "momentum_buffer", [](RMSpropOptions& options) -> RMSpropOptions& { return options.momentum(0.5); });
  expect_refused_after_a_step<torch::optim::RMSprop, RMSpropOptions>(
      strategy, "grad_avg", [](RMSpropOptions& options) -> RMSpropOptions& { return options.centered(true); });
}

TEST_P(PortingMistakes, EveryReplicaMayChangeItsOwnMode) {
  strategy.run([&] { model->eval(); });
  EXPECT_FALSE(model->is_training());
  strategy.run([&] {
    EXPECT_FALSE(model->is_training());
    model->train();
    EXPECT_TRUE(model->is_training());
  });
  model->eval();  // replica 0 only
  const auto use = [&] { strategy.run([&] { model->forward(torch::ones({1})); }); };
  if (replicas() == 1) return use();
  for (int twice = 0; twice < 2; ++twice)
    expect_error(use, Code::FailedPrecondition, errors::kWrongModule, {"disagree", "model.eval()"});
  model.eval();
  use();
  expect_error([&] { strategy.run([&] { model->train(my_id() == 0); }); }, Code::FailedPrecondition,
               errors::kWrongModule, {"disagree"});
}

struct Doubler : torch::nn::Module {
  Doubler() : inner(register_module("inner", torch::nn::Linear(1, 1))) {}
  at::Tensor forward(const at::Tensor& x) { return inner->forward(x); }
  torch::nn::Linear inner;
};

TEST_P(PortingMistakes, APartThatWasReplacedIsNoticedInAnEvaluation) {
  if (replicas() == 1) return;
  auto net = strategy.make<Doubler>();
  const auto evaluate = [&] {
    strategy.run([&] {
      const at::NoGradGuard no_grad;
      net->forward(torch::ones({1, 1}));
    });
  };
  net.eval();
  evaluate();
  net->inner = net->replace_module("inner", module_here(torch::nn::Linear(1, 1)));
  net->inner->eval();
  for (int twice = 0; twice < 2; ++twice)
    expect_error(evaluate, Code::FailedPrecondition, errors::kWrongModule, {"is not the one that make built"});
}

TEST_P(PortingMistakes, APartThatWasAddedIsNoticedInAnEvaluation) {
  if (replicas() == 1) return;
  auto net = strategy.make<Doubler>();
  net.eval();
  net->register_module("more", torch::nn::Linear(1, 1))->eval();
  expect_error([&] { strategy.run([&] {
                       net->forward(torch::ones({1, 1}));
                     }); }, Code::FailedPrecondition,
               errors::kWrongModule, {"'more.weight'", "is not the one that make built"});
}

TEST_P(PortingMistakes, ATeacherThatIsFrozenOnOneReplicaIsWarnedOf) {
  const LoggedLines lines;
  for (auto& parameter : model.parameters()) parameter.requires_grad_(false);
  for (int runs = 0; runs < 2; ++runs) strategy.run([&] { model->forward(torch::ones({1})); });
  EXPECT_EQ(lines.count("'w' is frozen on replica 0 and not on others"), replicas() > 1 ? 1 : 0);
}

TEST_P(PortingMistakes, OneLossForTwoOptimizersNamesTheCalls) {
  auto head = strategy.make<OneWeight>();
  auto of_head = strategy.make_optimizer<SGD>(head, 0.5);
  const auto loss = [&] { return (head->forward(torch::ones({1})) * (model->forward(torch::ones({1})) + 3)).sum(); };
  expect_error(
      [&] {
        strategy.run([&] {
          const at::Tensor one = loss();
          optimizer.minimize(one);
          of_head.minimize(one);
        });
      },
      Code::FailedPrecondition, errors::kOptimizer, {"graph of this loss already", "second.reduce_gradients()"});
  const double before = weight_of(head);
  strategy.run([&] {
    optimizer.zero_grad();
    of_head.zero_grad();
    optimizer.backward(loss());
    optimizer.reduce_gradients();
    of_head.reduce_gradients();
    optimizer.step();
    of_head.step();
  });
  EXPECT_NE(weight_of(head), before);
}

TEST_P(PortingMistakes, AModelOfInferenceModeHasNoOptimizer) {
  const auto made = [&] {
    const c10::InferenceMode inference;
    return strategy.make<OneWeight>();
  }();
  expect_error([&] { strategy.make_optimizer<SGD>(made, 0.5); }, Code::FailedPrecondition, errors::kWrongModule,
               {"made in inference mode", "strategy.make"});
}

}  // namespace
}  // namespace lockstep
