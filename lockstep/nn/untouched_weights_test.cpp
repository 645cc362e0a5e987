#include <gtest/gtest.h>
#include <torch/nn/modules/embedding.h>
#include <torch/optim/adagrad.h>
#include <torch/optim/adam.h>
#include <torch/optim/adamw.h>
#include <torch/optim/rmsprop.h>
#include <torch/optim/sgd.h>
#include <torch/utils.h>

#include <functional>

#include "lockstep/base/error.h"
#include "lockstep/base/logging.h"
#include "lockstep/nn/mirrored_optimizer.h"
#include "lockstep/strategy/mirrored_strategy.h"
#include "tests/support/replicas.h"
#include "tests/support/small_net.h"

// Errors occur on every replica before anything has been changed: after the mistake is fixed, training continues as if
// it had not been made.
namespace lockstep {
namespace {

using torch::optim::Adam;
using torch::optim::AdamOptions;
using torch::optim::SGD;
using torch::optim::SGDOptions;

/// Large enough for every replica to own a part of the first weight.
struct Layers : torch::nn::Module {
  Layers() : first(9, 2000), second(2000, 4), table(torch::nn::EmbeddingOptions(6, 9).sparse(true)) {
    register_module("first", first);
    register_module("second", second);
    register_module("table", table);
  }
  at::Tensor loss() { return second(first(torch::ones({2, 9})).tanh()).sum(); }
  at::Tensor sparse_loss() { return loss() + table(here(torch::tensor({1, 3, 3}))).sum(); }

  torch::nn::Linear first, second;
  torch::nn::Embedding table;
};

class UntouchedWeights : public testing::TestWithParam<int> {
 protected:
  UntouchedWeights() : strategy({.devices = test_devices(GetParam()), .seed = 4}), model(strategy.make<Layers>()) {
    set_log_severity(Severity::Silent);
  }

  /// `good` is a step of `optimizer` that works, `wrong` one that fails until `mend` is called.
  template <class Optimizer>
  void expect_refused(Optimizer& optimizer, int number, const std::string& part, const std::function<void()>& wrong,
                      const std::function<void()>& mend, const std::function<void()>& good) {
    SCOPED_TRACE(part);
    optimizer.set_digest({.every = 1});  // notices replicas that count differently
    const auto before = copies_of(model.parameters());
    const std::int64_t steps = optimizer.steps();
    try {
      wrong();
      ADD_FAILURE() << "no error";
    } catch (const Error& e) {
      EXPECT_EQ(e.number(), number) << e.what();
      EXPECT_NE(std::string(e.what()).find(part), std::string::npos) << e.what();
    }
    EXPECT_EQ(first_difference(model.parameters(), before), "");
    EXPECT_EQ(optimizer.steps(), steps);
    mend();
    good();
    EXPECT_EQ(optimizer.steps(), steps + 1);
    EXPECT_NE(first_difference(model.parameters(), before), "");
  }

  MirroredStrategy strategy;
  MirroredModule<Layers> model;
};
INSTANTIATE_TEST_SUITE_P(Replicas, UntouchedWeights, testing::Values(1, 2, 3, 4));

TEST_P(UntouchedWeights, WherePartsAreFrozenOrSwitchedOnOneReplica) {
  if (GetParam() == 1) return;  // one replica is all replicas
  for (const bool clip : {false, true}) {
    auto optimizer = strategy.make_optimizer<Adam>(model, AdamOptions(0.1));
    if (clip) optimizer.set_clip_global_norm(1.0);
    const auto step = [&] { strategy.run([&] { optimizer.minimize(model->loss()); }); };
    step();
    const auto freeze = [](Layers& layers, bool on) {
      for (auto& parameter : layers.second->parameters()) parameter.requires_grad_(!on);
    };
    for (const std::size_t replica : {std::size_t{0}, model.size() - 1}) {
      freeze(*model.replica(replica), true);
      expect_refused(
          optimizer, errors::kWrongModule, "'second.weight' is frozen", step,
          [&] { freeze(*model.replica(replica), false); }, step);
      model.replica(replica)->first->eval();
      expect_refused(
          optimizer, errors::kWrongModule, "'first' is in training mode on", step,
          [&] { model.replica(replica)->first->train(); }, step);
    }
  }
}

TEST_P(UntouchedWeights, WhereAClassCannotTakeSparseGradients) {
  const auto check = [&](auto optimizer, const char* who) {
    const auto step = [&](bool sparse) {
      strategy.run([&] { optimizer.minimize(sparse ? model->sparse_loss() : model->loss()); });
    };
    expect_refused(
        optimizer, errors::kOptimizer, std::string(who) + " cannot take the sparse gradient of 'table.weight'",
        [&] { step(true); }, [] {}, [&] { step(false); });
  };
  check(strategy.make_optimizer<Adam>(model, 0.1), "Adam");
  check(strategy.make_optimizer<torch::optim::AdamW>(model, 0.1), "AdamW");
  check(strategy.make_optimizer<torch::optim::RMSprop>(model, 0.1), "RMSprop");
  check(strategy.make_optimizer<SGD>(model, SGDOptions(0.1).weight_decay(0.1)), "SGD with weight_decay");
  check(strategy.make_optimizer<torch::optim::Adagrad>(model, torch::optim::AdagradOptions(0.1).weight_decay(0.1)),
        "Adagrad with weight_decay");
}

TEST_P(UntouchedWeights, WhereScaledAndUnscaledLossesMeet) {
  auto optimizer = strategy.make_optimizer<SGD>(model, SGDOptions(0.001));
  GradScaler scaler(strategy);
  const auto good = [&] { strategy.run([&] { optimizer.minimize(model->loss(), scaler); }); };
  const std::pair<const char*, std::function<void()>> cases[] = {
      {"cannot be added",
       [&] {
         optimizer.backward(model->loss(), scaler);
         optimizer.minimize(model->loss());
       }},
      {"cannot be added",
       [&] {
         optimizer.backward(model->loss());
         optimizer.minimize(model->loss(), scaler);
       }},
      {"before clip_global_norm",
       [&] {
         optimizer.backward(model->loss(), scaler);
         optimizer.reduce_gradients();
         optimizer.clip_global_norm(1.0);
       }},
      {"before clip_value",
       [&] {
         optimizer.backward(model->loss(), scaler);
         optimizer.reduce_gradients();
         optimizer.clip_value(1.0);
       }},
      {"before step",
       [&] {
         optimizer.backward(model->loss(), scaler);
         optimizer.reduce_gradients();
         optimizer.step();
       }},
  };
  for (const auto& [part, wrong] : cases) {
    expect_refused(
        optimizer, errors::kOptimizer, part, [&, &call = wrong] { strategy.run([&] { call(); }); }, [] {}, good);
  }
  optimizer.set_accumulate(2);
  strategy.run([&] { optimizer.minimize(model->loss(), scaler); });
  expect_refused(
      optimizer, errors::kOptimizer, "cannot be added",
      [&] { strategy.run([&] { optimizer.minimize(model->loss()); }); }, [] {},
      [&] {
        good();
        good();
      });
}

TEST_P(UntouchedWeights, WhereTheModelHasGrownAfterSomeSteps) {
  const std::pair<const char*, std::function<void(Layers&)>> cases[] = {
      {"'first.extra.weight'", [](Layers& its) { its.first->register_module("extra", torch::nn::Linear(2, 2)); }},
      {"'second.extra'", [](Layers& its) { its.second->register_parameter("extra", torch::ones({3})); }},
      {"'extra'", [](Layers& its) { its.register_parameter("extra", torch::ones({3})); }},
  };
  for (const auto& [name, grow] : cases) {
    for (const bool in_forward : {false, true}) {
      SCOPED_TRACE(testing::Message() << name << (in_forward ? " in a step" : " between steps"));
      auto growing = strategy.make<Layers>();
      auto optimizer = strategy.make_optimizer<SGD>(growing, SGDOptions(0.1));
      const auto step = [&] { strategy.run([&] { optimizer.minimize(growing->loss()); }); };
      for (int k = 0; k < 3; ++k) step();
      const at::Tensor weight = growing->first->weight;
      const at::Tensor before = weight.detach().clone();
      if (!in_forward) strategy.run([&, &f = grow] { f(*growing); });
      try {
        strategy.run([&, &f = grow] {
          if (in_forward) f(*growing);
          optimizer.minimize(growing->loss());
        });
        ADD_FAILURE() << "went unnoticed";
      } catch (const FailedPrecondition& e) {
        EXPECT_EQ(e.number(), errors::kWrongModule) << e.what();
        EXPECT_NE(std::string(e.what()).find(name), std::string::npos) << e.what();
      }
      EXPECT_EQ(optimizer.steps(), 3);
      EXPECT_TRUE(same_bits(weight.detach(), before));
    }
  }
  // A part without parameters changes nothing for the optimizer.
  auto optimizer = strategy.make_optimizer<SGD>(model, SGDOptions(0.1));
  for (int k = 0; k < 3; ++k) {
    strategy.run([&] {
      if (k == 1) model->register_module("extra", std::make_shared<torch::nn::Module>("Nothing"));
      optimizer.minimize(model->loss());
    });
  }
  EXPECT_EQ(optimizer.steps(), 3);
}

/// A class unknown to Lockstep, with unknown state.
struct OwnSgd : SGD {
  using SGD::SGD;
};

TEST_P(UntouchedWeights, NotOfAnUnknownClassWithASparseAndADenseParameter) {
  auto known_model = strategy.make<Layers>();
  copy_values(model.parameters(), known_model.parameters());
  auto known = strategy.make_optimizer<SGD>(known_model, SGDOptions(0.1).momentum(0.9));
  auto own = strategy.make_optimizer<OwnSgd>(model, SGDOptions(0.1).momentum(0.9));
  for (int k = 0; k < 4; ++k) {
    strategy.run([&] {
      own.minimize(model->sparse_loss());
      known.minimize(known_model->sparse_loss());
    });
  }
  for (std::size_t p = 0; p < model.parameters().size(); ++p)
    EXPECT_TRUE(model.parameters()[p].allclose(known_model.parameters()[p], 1e-5, 1e-6)) << p;
}

}  // namespace
}  // namespace lockstep
