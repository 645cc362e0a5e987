#include <ATen/ops/cross_entropy_loss.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/randint.h>
#include <ATen/ops/randn.h>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/generated/variable_factories.h>
#include <torch/nn/modules/dropout.h>
#include <torch/nn/modules/embedding.h>
#include <torch/nn/modules/linear.h>
#include <torch/optim/adagrad.h>
#include <torch/optim/adam.h>
#include <torch/optim/adamw.h>
#include <torch/optim/lbfgs.h>
#include <torch/optim/rmsprop.h>
#include <torch/optim/sgd.h>
#include <torch/utils.h>

#include <cmath>

#include "lockstep/base/error.h"
#include "lockstep/base/logging.h"
#include "lockstep/nn/loss.h"
#include "lockstep/nn/mirrored_optimizer.h"
#include "lockstep/nn/optimizer_core.h"
#include "lockstep/nn/owner_plan.h"
#include "lockstep/strategy/mirrored_strategy.h"
#include "tests/support/plain_loop.h"
#include "tests/support/replicas.h"

// Mirrored training against the plain LibTorch loop.
namespace lockstep {
namespace {

using torch::optim::AdagradOptions;
using torch::optim::AdamOptions;
using torch::optim::AdamWOptions;
using torch::optim::RMSpropOptions;
using torch::optim::SGDOptions;

/// Follows the plain loop over 50 steps with batches of 1 to 13 rows, so that pieces are uneven and some are empty.
template <class Opt, class Options>
void expect_plain_training(int replicas, const Options& options) {
  SCOPED_TRACE(std::to_string(replicas) + " replicas");
  torch::manual_seed(5);
  MirroredStrategy strategy({.devices = test_devices(replicas)});
  auto model = strategy.make([] { return std::make_shared<Net>(); });
  model.to(at::kDouble);
  auto optimizer = strategy.make_optimizer<Opt>(model, options);
  auto plain = module_here(std::make_shared<Net>());
  plain->to(at::kDouble);
  copy_values(model.parameters(), plain->parameters());
  Opt plain_optimizer(plain->parameters(), options);
  for (int step = 0; step < 50; ++step) {
    const Batch batch = random_batch(1 + (step * 5) % 13, at::kDouble);
    plain_optimizer.zero_grad();
    loss_per_row(plain->forward(batch.rows), batch.labels)
        .sum()
        .div(static_cast<double>(batch.rows.size(0)))
        .backward();
    plain_optimizer.step();
    mirrored_step(strategy, model, optimizer, batch);
  }
  EXPECT_EQ(optimizer.steps(), 50);
  EXPECT_LT(largest_relative_difference(model.parameters(), plain->parameters()), 1e-10);
  if (replicas == 1) {
    EXPECT_EQ(first_difference(model.parameters(), plain->parameters()), "");
  }
}

class Training : public testing::TestWithParam<int> {
 protected:
  void SetUp() override { set_log_severity(Severity::Warning); }
};
INSTANTIATE_TEST_SUITE_P(Replicas, Training, testing::Values(1, 2, 3, 4));

TEST_P(Training, SgdFollowsThePlainLoop) {
  expect_plain_training<torch::optim::SGD>(GetParam(), SGDOptions(0.1).momentum(0.9).weight_decay(1e-2));
}
TEST_P(Training, SgdNesterovFollowsThePlainLoop) {
  expect_plain_training<torch::optim::SGD>(GetParam(), SGDOptions(0.05).momentum(0.8).nesterov(true));
}
TEST_P(Training, AdamFollowsThePlainLoop) {
  expect_plain_training<torch::optim::Adam>(GetParam(), AdamOptions(0.01).weight_decay(1e-2).amsgrad(true));
}
TEST_P(Training, AdamWFollowsThePlainLoop) {
  expect_plain_training<torch::optim::AdamW>(GetParam(), AdamWOptions(0.01));
}
TEST_P(Training, RmspropFollowsThePlainLoop) {
  expect_plain_training<torch::optim::RMSprop>(GetParam(), RMSpropOptions(0.001).momentum(0.9).centered(true));
}
TEST_P(Training, AdagradFollowsThePlainLoop) {
  expect_plain_training<torch::optim::Adagrad>(GetParam(), AdagradOptions(0.05).weight_decay(1e-3));
}

/// Not declared element-wise: gets whole parameters.
struct OtherSgd : torch::optim::SGD {
  using SGD::SGD;
};

TEST_P(Training, AnyOtherOptimizerFollowsThePlainLoopWithWholeParameters) {
  expect_plain_training<OtherSgd>(GetParam(), SGDOptions(0.1).momentum(0.9));
}

TEST_P(Training, InitialWeightsOfSeveralModelsDoNotDependOnTheNumberOfReplicas) {
  const auto weights = [](int replicas) {
    torch::manual_seed(11);
    MirroredStrategy strategy({.devices = test_devices(replicas)});
    auto first = strategy.make<Net>(20);
    auto second = strategy.make<Net>(30);
    std::vector<at::Tensor> all;
    for (const auto& parameter : first.parameters()) all.push_back(parameter.detach().clone());
    for (const auto& parameter : second.parameters()) all.push_back(parameter.detach().clone());
    return all;
  };
  EXPECT_EQ(first_difference(weights(GetParam()), weights(1)), "");
}

TEST_P(Training, TwoRunsWithOneSeedAreBitwiseEqualWithDropout) {
  const auto train = [&] {
    torch::manual_seed(23);
    MirroredStrategy strategy({.devices = test_devices(GetParam())});
    auto model = strategy.make<Net>(40, 0.5);
    model.to(at::kDouble);
    auto optimizer = strategy.make_optimizer<torch::optim::Adam>(model, AdamOptions(0.01));
    for (int step = 0; step < 5; ++step) mirrored_step(strategy, model, optimizer, random_batch(11, at::kDouble));
    std::vector<at::Tensor> weights;
    for (const auto& parameter : model.parameters()) weights.push_back(parameter.detach().clone());
    return weights;
  };
  const auto first = train();
  for (int repeat = 0; repeat < 20; ++repeat) ASSERT_EQ(first_difference(train(), first), "") << "repeat " << repeat;
}

TEST_P(Training, ReplicasShareTheMemoryOfWeightsAndOptimizerState) {
  MirroredStrategy strategy({.devices = test_devices(GetParam())});
  auto model = strategy.make<Net>(600);
  auto optimizer = strategy.make_optimizer<torch::optim::SGD>(model, SGDOptions(0.1).momentum(0.9));
  std::int64_t elements = 0;
  for (std::size_t p = 0; p < model.parameters().size(); ++p) {
    elements += model.parameters()[p].numel();
    for (std::size_t k = 1; k < model.size(); ++k) {
      EXPECT_EQ(model.replica(k)->parameters()[p].data_ptr(), model.parameters()[p].data_ptr());
      EXPECT_FALSE(model.replica(k)->parameters()[p].is_same(model.parameters()[p]));
    }
  }
  std::int64_t owned = 0;
  for (std::size_t k = 0; k < model.size(); ++k) {
    for (const auto& segment : optimizer.core()->replicas[k]->owned) owned += segment.weights.numel();
  }
  EXPECT_EQ(owned, elements);  // so the state of each element exists once
}

TEST_P(Training, AStaleBackwardRaisesAsInLibTorch) {
  MirroredStrategy strategy({.devices = test_devices(GetParam())});
  auto model = strategy.make<Net>(8);
  auto optimizer = strategy.make_optimizer<torch::optim::SGD>(model, SGDOptions(0.1));
  EXPECT_THROW(strategy.run([&] {
    const at::Tensor x = torch::ones({2, 9});
    const at::Tensor stale = model->forward(x).sum();
    optimizer.minimize(model->forward(x).sum());
    optimizer.minimize(stale);
  }),
               c10::Error);
}

/// Fails in the update itself, on one replica.
struct BrokenSgd : torch::optim::SGD {
  using SGD::SGD;
  at::Tensor step(LossClosure closure = nullptr) override {
    if (get_replica_context().replica_id_in_sync_group() == 0) throw std::runtime_error("out of luck");
    return SGD::step(std::move(closure));
  }
};

TEST_P(Training, AFailingUpdatePoisonsTheOptimizer) {
  set_log_severity(Severity::Silent);
  MirroredStrategy strategy({.devices = test_devices(GetParam())});
  auto model = strategy.make<Net>(8);
  auto optimizer = strategy.make_optimizer<BrokenSgd>(model, SGDOptions(0.1));
  const auto step = [&] { strategy.run([&] { optimizer.minimize(model->forward(torch::ones({2, 9})).sum()); }); };
  EXPECT_THROW(step(), std::runtime_error);
  try {
    step();
    FAIL() << "torn weights were trained on";
  } catch (const FailedPrecondition& e) {
    EXPECT_NE(std::string(e.what()).find("weights are torn at step 0"), std::string::npos) << e.what();
  }
  auto another = strategy.make_optimizer<torch::optim::SGD>(model, SGDOptions(0.1));
  const auto step_of_another = [&] {
    strategy.run([&] { another.minimize(model->forward(torch::ones({2, 9})).sum()); });
  };
  EXPECT_THROW(step_of_another(), FailedPrecondition) << "the weights are still torn";
  model.update([](Net& net) {
    for (auto& p : net.parameters()) p.fill_(0.1);
  });
  step_of_another();
}

TEST_P(Training, MisuseGivesTypedErrors) {
  set_log_severity(Severity::Silent);
  MirroredStrategy strategy({.devices = test_devices(GetParam())});
  MirroredStrategy other({.devices = test_devices(1)});
  auto model = strategy.make<Net>(8);
  EXPECT_THROW(other.make_optimizer<torch::optim::SGD>(model, SGDOptions(0.1)), InvalidArgument);
  EXPECT_THROW(strategy.make_optimizer<torch::optim::LBFGS>(model, torch::optim::LBFGSOptions(1)), Unimplemented);
  auto optimizer = strategy.make_optimizer<torch::optim::SGD>(model, SGDOptions(0.1));
  EXPECT_THROW(optimizer.minimize(torch::ones({})), FailedPrecondition);                       // outside of run
  EXPECT_THROW(strategy.run([&] { optimizer.minimize(torch::ones({3})); }), InvalidArgument);  // not one number
  EXPECT_THROW(strategy.run([&] { optimizer.minimize(torch::ones({})); }), InvalidArgument);   // no gradient
  EXPECT_THROW(strategy.run([&] { optimizer.step(); }), FailedPrecondition);                   // not reduced
  EXPECT_THROW(model.to(at::kDouble), FailedPrecondition);                                     // taken over
  EXPECT_THROW(strategy.run([&] { strategy.make<Net>(8); }), FailedPrecondition);
  EXPECT_THROW(optimizer.set_accumulate(0), InvalidArgument);
  const auto shared = std::make_shared<Net>(8);
  if (GetParam() > 1) {
    EXPECT_THROW(strategy.make([&] { return shared; }), InvalidArgument);
    model->eval();  // reaches only replica 0
    EXPECT_THROW(strategy.run([&] { model->forward(torch::ones({1, 9})); }), FailedPrecondition);
    model.train();
    Net* const of_replica_0 = model.operator->();
    EXPECT_THROW(strategy.run([&] {
      if (get_replica_context().replica_id_in_sync_group() == 1)
        of_replica_0->forward(torch::ones({1, 9})).sum().backward();
    }),
                 FailedPrecondition);
  }
}

TEST(TrainingGroups, GroupsHaveOptionsOfTheirOwnAndLearningRatesChange) {
  MirroredStrategy strategy({.devices = test_devices(2)});
  auto model = strategy.make<Net>(8);
  std::vector<at::Tensor> before;
  for (const auto& item : model.named_parameters()) before.push_back(item.value().detach().clone());
  auto optimizer = strategy.make_optimizer<torch::optim::SGD>(
      model, std::vector<ParameterGroup<SGDOptions>>{{{"second."}, SGDOptions(0.5)}, {{"first."}, SGDOptions(0.0)}});
  strategy.run([&] { optimizer.minimize(model->forward(torch::ones({2, 9})).sum()); });
  EXPECT_TRUE(model.named_parameters()["first.weight"].equal(before[1]) ||
              model.named_parameters()["first.weight"].equal(before[0]));
  EXPECT_EQ(optimizer.learning_rate(0), 0.5);
  optimizer.set_learning_rate(0.25);
  EXPECT_EQ(optimizer.options(1).lr(), 0.25);
  EXPECT_THROW((strategy.make_optimizer<torch::optim::SGD>(
                   model, std::vector<ParameterGroup<SGDOptions>>{{{"nothing."}, SGDOptions(0.5)}})),
               InvalidArgument);
}

TEST(OwnerPlan, EveryElementHasOneOwnerAndCutsAreAtBlocks) {
  for (const int replicas : {1, 2, 3, 4, 7, 16}) {
    const std::vector<OwnedParameter> parameters{{10, false}, {5000, false},  {0, false},
                                                 {300, true}, {12288, false}, {1, true}};
    const auto plan = plan_owners(parameters, replicas);
    std::vector<std::int64_t> covered(parameters.size(), 0);
    for (const auto& shard : plan) {
      for (const auto& segment : shard) {
        const auto& parameter = parameters[static_cast<std::size_t>(segment.parameter)];
        EXPECT_EQ(segment.begin % kShardBlock, 0);
        EXPECT_TRUE(segment.end % kShardBlock == 0 || segment.end == parameter.elements);
        if (parameter.whole) {
          EXPECT_EQ(segment.end - segment.begin, parameter.elements);
        }
        covered[static_cast<std::size_t>(segment.parameter)] += segment.end - segment.begin;
      }
    }
    for (std::size_t p = 0; p < parameters.size(); ++p)
      EXPECT_EQ(covered[p], parameters[p].elements) << replicas << " replicas\n" << to_string(plan, parameters);
  }
}

/// As LibTorch's own constructors take them.
TEST_P(Training, GroupsInBracesAndALearningRateAlone) {
  using torch::optim::SGD;
  MirroredStrategy strategy({.devices = test_devices(GetParam())});
  auto model = strategy.make<Net>(3);
  copy_values({torch::zeros({3}), torch::zeros({4})}, {model->first->bias, model->second->bias});
  const auto step = [&](auto optimizer) {
    strategy.run([&] { optimizer.minimize((model->first->bias.sum() + model->second->bias.sum()).div(GetParam())); });
  };
  auto grouped = strategy.make_optimizer<SGD>(model, {{{"first."}, SGDOptions(0.1)}, {{""}, SGDOptions(0.01)}});
  EXPECT_EQ(grouped.group_count(), 2u);
  step(grouped);
  EXPECT_TRUE(model->first->bias.allclose(torch::full({3}, -0.1)));
  EXPECT_TRUE(model->second->bias.allclose(torch::full({4}, -0.01)));
  auto simple = strategy.make_optimizer<SGD>(model, 0.01);
  EXPECT_EQ(simple.learning_rate(), 0.01);
  step(simple);
  EXPECT_TRUE(model->second->bias.allclose(torch::full({4}, -0.02)));
  EXPECT_EQ(strategy.make_optimizer<SGD>(model, 1).learning_rate(), 1.0);
  EXPECT_EQ(strategy.make_optimizer<torch::optim::Adam>(model, 0.5f).options().lr(), 0.5);
  EXPECT_EQ(strategy.make_optimizer<OtherSgd>(model, 0.25).options().lr(), 0.25) << "a class of one's own";
}

}  // namespace
}  // namespace lockstep
