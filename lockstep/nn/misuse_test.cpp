#include <gtest/gtest.h>
#include <torch/nn/modules/embedding.h>
#include <torch/optim/adam.h>
#include <torch/optim/sgd.h>
#include <torch/utils.h>

#include <cmath>
#include <functional>

#include "lockstep/base/error.h"
#include "lockstep/base/logging.h"
#include "lockstep/nn/loss.h"
#include "lockstep/nn/mirrored_optimizer.h"
#include "lockstep/strategy/mirrored_strategy.h"
#include "tests/support/errors.h"
#include "tests/support/logged_lines.h"
#include "tests/support/replicas.h"
#include "tests/support/small_net.h"

// Misuse of models, optimizers and scalers: each error has its type, its number and a text that names the culprit.
namespace lockstep {
namespace {

using torch::optim::SGDOptions;

template <class E>
void expect_error(int number, const std::string& part, const std::function<void()>& call) {
  SCOPED_TRACE("expected L" + std::to_string(number) + " with '" + part + "'");
  const SeenError seen = error_of(call);
  EXPECT_EQ(seen.code, E(number, {}).code()) << seen.text;
  EXPECT_EQ(seen.number, number) << seen.text;
  EXPECT_TRUE(contains(seen.text, part)) << seen.text;
  EXPECT_NE(seen.parts.help, "") << seen.text;
}

class Misuse : public testing::TestWithParam<int> {
 protected:
  Misuse()
      : strategy({.devices = test_devices(GetParam())}),
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
  MirroredStrategy other({.devices = test_devices(GetParam())});
  expect_error<InvalidArgument>(errors::kMixedStrategies, "another strategy",
                                [&] { other.make_optimizer<torch::optim::SGD>(model, SGDOptions(0.1)); });
  auto others_model = other.make<SmallNet>();
  EXPECT_THROW(other.run([&] { optimizer.minimize(others_model->forward(torch::ones({2, 9})).sum()); }), Error);
  EXPECT_THROW(other.run([&] { model->forward(torch::ones({2, 9})); }), Error);
  step();  // still fine in the right place
  EXPECT_EQ(optimizer.steps(), 1);
}

TEST_P(Misuse, OfAModelThatOutlivedItsStrategy) {
  auto short_lived = std::make_unique<MirroredStrategy>(MirroredOptions{.devices = test_devices(GetParam())});
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
  expect_error<FailedPrecondition>(errors::kWrongModule, "late",
                                   [&] { strategy.make_optimizer<torch::optim::SGD>(grown, SGDOptions(0.1)); });
}

TEST_P(Misuse, OfAModelWhoseMemoryWasReplacedBetweenSteps) {
  step();
  auto& weight = model.replica(static_cast<std::size_t>(GetParam() - 1))->second->weight;
  weight.set_data(weight.detach().clone());
  expect_error<FailedPrecondition>(errors::kWrongModule, "'second.weight' has moved to other memory", [&] { step(); });
}

TEST_P(Misuse, OfAModelConvertedOnOneReplica) {
  auto converted = strategy.make<SmallNet>();
  converted.replica(0)->to(at::kDouble);
  expect_error<FailedPrecondition>(errors::kWrongModule, "has moved to other memory",
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
    expect_error<InvalidArgument>(errors::kNotFinite, "loss scale", [&] { scaler.load_state({.scale = scale}); });
    EXPECT_EQ(scaler.scale(), 65536.0);
  }
  expect_error<InvalidArgument>(errors::kBadOption, "GradScaler", [&] { GradScaler(strategy, {.growth = NAN}); });
  expect_error<InvalidArgument>(errors::kBadOption, "GradScaler", [&] { GradScaler(strategy, {.backoff = 1.0}); });
}

/// A network whose head may be replaced.
struct TwoParts : torch::nn::Module {
  TwoParts()
      : body(register_module("body", torch::nn::Linear(3, 4))),
        head(register_module("head", torch::nn::Linear(4, 2))) {}
  at::Tensor forward(const at::Tensor& x) { return head->forward(body->forward(x)).sum(); }
  torch::nn::Linear body, head;
};

TEST_P(Misuse, OfAModelWithAReplacedPart) {
  for (const int steps_before : {0, 2}) {
    auto net = strategy.make<TwoParts>();
    auto sgd = strategy.make_optimizer<torch::optim::SGD>(net, SGDOptions(0.1));
    const auto train = [&] { strategy.run([&] { sgd.minimize(net->forward(torch::ones({2, 3}))); }); };
    for (int s = 0; s < steps_before; ++s) train();
    for (std::size_t k = 0; k < net.size(); ++k)
      net.replica(k)->head = net.replica(k)->replace_module("head", module_here(torch::nn::Linear(4, 2)));
    expect_error<FailedPrecondition>(errors::kWrongModule, "head.", train);
  }
}

TEST_P(Misuse, OfAModelWithAParameterAddedBeforeAStateIsLoaded) {
  step();
  const OptimizerState saved = optimizer.state();
  auto other = strategy.make<SmallNet>();
  auto sgd = strategy.make_optimizer<torch::optim::SGD>(other, SGDOptions(0.1));
  for (std::size_t k = 0; k < other.size(); ++k) other.replica(k)->register_parameter("late", torch::ones({2}));
  sgd.load_state(saved);
  expect_error<FailedPrecondition>(errors::kWrongModule, "late", [&] {
    strategy.run([&] { sgd.minimize(other->forward(torch::ones({2, 9})).sum()); });
  });
}

TEST_P(Misuse, OfModelsInsideOfRun) {
  const auto in_run = [&](const std::function<void()>& f) { return [this, f] { strategy.run([&] { f(); }); }; };
  expect_error<FailedPrecondition>(errors::kWrongContext, "eval", in_run([&] { model.eval(); }));
  expect_error<FailedPrecondition>(errors::kWrongContext, "to of a model", in_run([&] { model.to(at::kDouble); }));
  expect_error<FailedPrecondition>(errors::kWrongContext, "apply",
                                   in_run([&] { model.apply([](torch::nn::Module&) {}); }));
  expect_error<FailedPrecondition>(errors::kWrongContext, "synchronize_buffers",
                                   in_run([&] { model.synchronize_buffers(); }));
}

TEST_P(Misuse, OfGradientsLeftByAFailedRun) {
  const auto fails_after_reducing = [&] {
    strategy.run([&] {
      optimizer.backward(model->forward(torch::ones({2, 9})).sum());
      optimizer.reduce_gradients();
      if (get_replica_context().replica_id_in_sync_group() == GetParam() - 1) throw std::runtime_error("mine");
    });
  };
  EXPECT_THROW(fails_after_reducing(), std::runtime_error);
  expect_error<FailedPrecondition>(errors::kOptimizer, "a run has failed",
                                   [&] { strategy.run([&] { optimizer.step(); }); });
  step();
  EXPECT_EQ(optimizer.steps(), 1);
  EXPECT_THROW(fails_after_reducing(), std::runtime_error);
  step();
  EXPECT_EQ(optimizer.steps(), 2);
}

TEST_P(Misuse, OfStateInsideAnAccumulateWindow) {
  const OptimizerState saved = optimizer.state();
  optimizer.set_accumulate(3);
  step();
  expect_error<FailedPrecondition>(errors::kOptimizer, "window", [&] { optimizer.state(); });
  optimizer.load_state(saved);  // drops the accumulated gradients
  for (int call = 1; call <= 3; ++call) {
    EXPECT_EQ(optimizer.steps(), 0) << call;
    step();
  }
  EXPECT_EQ(optimizer.steps(), 1);
}

TEST_P(Misuse, OfStatesThatDoNotFit) {
  auto adam = strategy.make_optimizer<torch::optim::Adam>(model, torch::optim::AdamOptions(0.1));
  strategy.run([&] { adam.minimize(model->forward(torch::ones({2, 9})).sum()); });
  OptimizerState state = adam.state();
  state["unknown"] = {};
  expect_error<InvalidArgument>(errors::kOptimizer, "'unknown'", [&] { adam.load_state(state); });
  state = adam.state();
  (++state.begin())->second["step"] = torch::ones({8});
  EXPECT_THROW(adam.load_state(state), InvalidArgument);
  for (const auto& bad : {torch::tensor(-1), torch::tensor(1.5), at::Tensor()}) {
    state = adam.state();
    state["second.bias"]["step"] = bad;  // -1 would divide by zero in the next step
    EXPECT_EQ(error_of([&] { adam.load_state(state); }).number, errors::kOptimizer) << bad;
    state = adam.state();
    state[""]["steps"] = bad;
    expect_error<InvalidArgument>(errors::kOptimizer, "'steps'", [&] { adam.load_state(state); });
  }
  for (const auto type : {at::kLong, at::kComplexFloat}) {
    state = adam.state();
    state["second.bias"]["exp_avg"] = torch::ones({4}, type);
    expect_error<InvalidArgument>(errors::kOptimizer, "exp_avg is ", [&] { adam.load_state(state); });
  }
  EXPECT_EQ(adam.steps(), 1);
  for (const double rate : {-1.0, static_cast<double>(NAN), static_cast<double>(INFINITY)}) {
    expect_error<InvalidArgument>(errors::kBadOption, "learning rate", [&] { adam.set_learning_rate(rate); });
  }
}

TEST_P(Misuse, OfGradientsThatAreNotReducedYet) {
  expect_error<FailedPrecondition>(errors::kOptimizer, "no reduced gradients",
                                   [&] { strategy.run([&] { optimizer.gradients_are_finite(); }); });
}

TEST_P(Misuse, OfAScalerOfAnotherStrategy) {
  MirroredStrategy other({.devices = test_devices(GetParam())});
  GradScaler scaler(other);
  expect_error<InvalidArgument>(errors::kMixedStrategies, "GradScaler", [&] {
    strategy.run([&] { optimizer.minimize(model->forward(torch::ones({2, 9})).sum(), scaler); });
  });
  EXPECT_EQ(scaler.scale(), 65536.0);
}

TEST_P(Misuse, OfOptionsOfAnotherClass) {
  EXPECT_EQ(optimizer.options().lr(), 0.1);
  expect_error<InvalidArgument>(errors::kOptimizer, "another class",
                                [&] { optimizer.options<torch::optim::AdamOptions>(); });
  expect_error<InvalidArgument>(errors::kBadOption, "no parameter group 1", [&] { optimizer.options(1); });
}

TEST_P(Misuse, OfSettingsInsideOfRun) {
  const std::vector<std::pair<const char*, std::function<void()>>> calls = {
      {"set_learning_rate", [&] { optimizer.set_learning_rate(0.5); }},
      {"set_reduce_op", [&] { optimizer.set_reduce_op(ReduceOp::Mean); }},
      {"set_clip_global_norm", [&] { optimizer.set_clip_global_norm(1.0); }},
      {"set_clip_value", [&] { optimizer.set_clip_value(1.0); }},
      {"set_non_finite_policy", [&] { optimizer.set_non_finite_policy(NonFinitePolicy::Raise); }},
      {"set_accumulate", [&] { optimizer.set_accumulate(2); }},
      {"options", [&] { optimizer.options(); }},
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

struct ComplexNet : torch::nn::Module {
  ComplexNet() { weight = register_parameter("weight", torch::ones({3}, at::kComplexFloat)); }
  at::Tensor weight;
};

TEST_P(Misuse, OfClippingWithComplexGradients) {
  auto complex = strategy.make<ComplexNet>();
  auto sgd = strategy.make_optimizer<torch::optim::SGD>(complex, SGDOptions(0.1));
  const auto clip = [&](bool by_norm) {
    strategy.run([&] {
      sgd.backward(complex->weight.abs().sum());
      sgd.reduce_gradients();
      by_norm ? static_cast<void>(sgd.clip_global_norm(1.0)) : sgd.clip_value(1.0);
    });
  };
  for (const bool by_norm : {true, false}) {
    expect_error<InvalidArgument>(errors::kDtype, "'weight' is complex", [&] { clip(by_norm); });
  }
  strategy.run([&] { sgd.minimize(complex->weight.abs().sum()); });
  EXPECT_EQ(sgd.steps(), 1);
}

TEST_P(Misuse, OfPartsFrozenOrSwitchedOnOneReplica) {
  const auto expect_refusal = [&](const char* text) {
    if (GetParam() == 1) return step();  // one replica is all replicas
    expect_error<FailedPrecondition>(errors::kWrongModule, text, [&] { step(); });
  };
  model->second->bias.requires_grad_(false);
  expect_refusal("'second.bias' is frozen on replica 0 and not on replica");
  strategy.run([&] { model->second->bias.requires_grad_(false); });
  const at::Tensor frozen = model->second->bias.detach().clone();
  step();
  EXPECT_TRUE(at::equal(model->second->bias.detach(), frozen));
  strategy.run([&] { model->second->bias.requires_grad_(true); });
  step();
  EXPECT_FALSE(at::equal(model->second->bias.detach(), frozen));
  model->first->eval();
  expect_refusal("'first' is in training mode on replica");
  strategy.run([&] { model->first->eval(); });
  step();
}

TEST_P(Misuse, OfAnEmbeddingThatWritesToItsRows) {
  const auto make = [&] { strategy.make<torch::nn::Embedding>(torch::nn::EmbeddingOptions(5, 3).max_norm(1.0)); };
  if (GetParam() == 1) return make();
  expect_error<InvalidArgument>(errors::kWrongModule, "max_norm", make);
}

TEST_P(Misuse, OfParametersInOneMemory) {
  auto net = strategy.make([] {
    auto built = std::make_shared<SmallNet>();
    auto table = built->register_parameter("table", torch::ones({4, 24}));
    table.set_data(built->second->weight.data());
    return built;
  });
  const auto make = [&] { strategy.make_optimizer<torch::optim::SGD>(net, SGDOptions(0.1)); };
  strategy.make_optimizer<torch::optim::SGD>(net, {{{"first.", "table"}, SGDOptions(0.1)}});
  if (GetParam() == 1) return make();
  expect_error<InvalidArgument>(errors::kWrongModule, "share memory", make);
}

TEST_P(Misuse, OfAPartThatAllReplicasShare) {
  const torch::nn::BatchNorm1d norm(torch::nn::BatchNormOptions(9).affine(false));
  const auto make = [&] { strategy.make([&] { return torch::nn::Sequential(torch::nn::Linear(9, 9), norm); }); };
  if (GetParam() == 1) return make();
  expect_error<InvalidArgument>(errors::kStructure, "'1' of replica 1 is replica 0's", make);
  const torch::nn::Dropout drop(0.5);  // has no state of its own
  strategy.make([&] { return torch::nn::Sequential(torch::nn::Linear(9, 9), drop); });
}

TEST_P(Misuse, OfAWeightThatWasReplacedAfterItWasRegistered) {
  const LoggedLines lines;
  strategy.make([] {
    auto built = std::make_shared<SmallNet>();
    built->second->weight = built->first->weight;
    return built;
  });
  EXPECT_EQ(lines.count("'second.weight' is not the tensor that was registered"), 1);
  strategy.make<torch::nn::Linear>(9, 9);
  EXPECT_EQ(lines.count("is not the tensor"), 1);
}

TEST_P(Misuse, OfGradientsOfAnotherForm) {
  const auto step_with = [&](const at::Tensor& gradient) {
    strategy.run([&] {
      optimizer.zero_grad();
      optimizer.backward(model->forward(torch::ones({2, 9})).sum());
      if (get_replica_context().replica_id_in_sync_group() == GetParam() - 1)
        model->second->bias.mutable_grad() = gradient;
      optimizer.reduce_gradients();
      const at::Tensor reduced = optimizer.gradients()["second.bias"];
      EXPECT_EQ(reduced.scalar_type(), at::kFloat);
      EXPECT_TRUE(reduced.equal(torch::full({4}, 2.0 * (GetParam() - 1) + 7))) << reduced;
      optimizer.step();
    });
  };
  step_with(torch::full({4}, 7.0, at::kDouble));
  step_with(torch::full({4}, 7.0, at::kBFloat16));
  expect_error<InvalidArgument>(errors::kShape, "'second.bias' must have its shape [4]",
                                [&] { step_with(torch::full({3}, 7.0)); });
}

TEST_P(Misuse, OfAnOptimizerWithoutGroups) {
  expect_error<InvalidArgument>(errors::kOptimizer, "at least one parameter group", [&] {
    strategy.make_optimizer<torch::optim::SGD>(model, std::vector<ParameterGroup<SGDOptions>>{});
  });
}

TEST_P(Misuse, OfNotFiniteGradientsInParts) {
  const auto in_parts = [&] {
    strategy.run([&] {
      optimizer.backward(model->forward(torch::ones({2, 9})).sum() * NAN);
      optimizer.reduce_gradients();
      optimizer.step();
    });
  };
  optimizer.set_non_finite_policy(NonFinitePolicy::Raise);
  expect_error<FailedPrecondition>(errors::kNotFinite, "holds NaN or infinity", in_parts);
  optimizer.set_non_finite_policy(NonFinitePolicy::SkipStep);
  in_parts();
  EXPECT_EQ(optimizer.skipped_steps(), 1);
  EXPECT_EQ(optimizer.steps(), 0);
  for (const auto& parameter : model.parameters()) EXPECT_TRUE(parameter.isfinite().all().item<bool>());
}

TEST_P(Misuse, OfAStateThatLacksWhatTheOptionsAskFor) {
  auto without = strategy.make_optimizer<torch::optim::Adam>(model, torch::optim::AdamOptions(0.1));
  strategy.run([&] { without.minimize(model->forward(torch::ones({2, 9})).sum()); });
  auto with = strategy.make_optimizer<torch::optim::Adam>(model, torch::optim::AdamOptions(0.1).amsgrad(true));
  expect_error<InvalidArgument>(errors::kOptimizer, "max_exp_avg_sq", [&] { with.load_state(without.state()); });
  strategy.run([&] { with.minimize(model->forward(torch::ones({2, 9})).sum()); });
}

TEST_P(Misuse, OfAScalerInsideOfRun) {
  GradScaler scaler(strategy);
  expect_error<FailedPrecondition>(errors::kWrongContext, "load_state of a GradScaler",
                                   [&] { strategy.run([&] { scaler.load_state({.scale = 2.0}); }); });
  EXPECT_EQ(scaler.scale(), 65536.0);
  scaler.load_state({.scale = 2.0});
  EXPECT_EQ(scaler.scale(), 2.0);
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
  expect_error<InvalidArgument>(errors::kBadOption, "every must be >= 0, got -1",
                                [&] { optimizer.set_digest({.every = -1}); });
  expect_error<InvalidArgument>(errors::kBadOption, "max_norm must be > 0",
                                [&] { optimizer.set_clip_global_norm(NAN); });
  step();
}

TEST_P(Misuse, OfAnEmptyBatchThatSkipsMinimize) {
  const auto train = [&](bool skip) {
    strategy.run([&] {
      const bool is_empty = GetParam() > 1 && get_replica_context().replica_id_in_sync_group() == GetParam() - 1;
      if (is_empty && skip) return;
      const at::Tensor rows = torch::ones({is_empty ? 0 : 2, 24});
      optimizer.minimize(average_loss(model->second->forward(rows).sum(1), 2));
    });
  };
  train(false);  // a loss of zero rows is a loss
  EXPECT_EQ(optimizer.steps(), 1);
  if (GetParam() == 1) return;
  expect_error<FailedPrecondition>(errors::kUnequalMeetings, "and minimize", [&] { train(true); });
  expect_error<FailedPrecondition>(errors::kUnequalMeetings, "even if its batch is empty", [&] { train(true); });
  train(false);
  EXPECT_EQ(optimizer.steps(), 2);
}

}  // namespace
}  // namespace lockstep
