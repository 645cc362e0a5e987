#include <ATen/ops/ones.h>
#include <gtest/gtest.h>
#include <torch/optim/sgd.h>

#include <stdexcept>
#include <vector>

#include "lockstep/nn/mirrored_optimizer.h"
#include "lockstep/nn/state.h"
#include "lockstep/strategy/mirrored_strategy.h"
#include "tests/support/expect_error.h"
#include "tests/support/logged_lines.h"
#include "tests/support/replicas.h"
#include "tests/support/small_net.h"

// After a failure in this process a snapshot restores model, optimizer and strategy.
namespace lockstep {
namespace {

using torch::optim::SGDOptions;

/// Fails half-way on one replica.
struct FailingSgd : torch::optim::SGD {
  using SGD::SGD;
  static inline bool fails = false;
  at::Tensor step(LossClosure closure = nullptr) override {
    if (fails && get_replica_context().replica_id_in_sync_group() == 0) throw std::runtime_error("out of luck");
    return SGD::step(std::move(closure));
  }
};

}  // namespace

template <>
struct OptimizerStateTraits<FailingSgd> : OptimizerStateTraits<torch::optim::SGD> {};

namespace {

class RestoredFailure : public testing::TestWithParam<int> {
 protected:
  void SetUp() override { torch::manual_seed(5); }

  const LogSilence silence_;
  MirroredStrategy strategy_{on_devices(GetParam())};
  MirroredModule<SmallNet> model_ = strategy_.make<SmallNet>(16, 0.2);
  MirroredOptimizer<FailingSgd> optimizer_ =
      strategy_.make_optimizer<FailingSgd>(model_, SGDOptions(0.1).momentum(0.9));
  int calls_ = 0;

  void step(bool fails_before_minimize = false) {
    ++calls_;
    strategy_.run([&] {
      const at::Tensor loss = model_->forward(at::ones({3, 9}) * calls_).square().mean();
      if (fails_before_minimize && get_replica_context().replica_id_in_sync_group() + 1 == GetParam())
        throw std::runtime_error("before minimize");
      optimizer_.minimize(loss);
    });
  }
  std::vector<at::Tensor> steps(int count) {
    calls_ = 10;
    for (int i = 0; i < count; ++i) step();
    return copies_of(model_.parameters());
  }
  std::vector<NamedState> parts() { return {{"optimizer", optimizer_}, {"model", model_}}; }
};

TEST_P(RestoredFailure, OfAnUpdateIsLifted) {
  steps(2);
  const Snapshot snapshot = capture(strategy_, parts());
  const auto expected = steps(3);
  FailingSgd::fails = true;
  EXPECT_ANY_THROW(step());
  FailingSgd::fails = false;
  expect_error([&] { step(); }, Code::FailedPrecondition, errors::kTornWeights, {"restore"});
  expect_error([&] { capture(strategy_, parts()); }, Code::FailedPrecondition, errors::kTornWeights, {"restore"});
  restore(strategy_, snapshot, parts());
  EXPECT_EQ(strategy_.last_failure(), std::nullopt);
  EXPECT_EQ(first_difference(steps(3), expected), "");
  capture(strategy_, parts());
}

TEST_P(RestoredFailure, OfAnUpdateIsNotLiftedBeforeTheWeightsAreBack) {
  steps(1);
  const Snapshot of_optimizer = capture(strategy_, {{"optimizer", optimizer_}});
  const Snapshot of_model = capture(strategy_, {{"model", model_}});
  FailingSgd::fails = true;
  EXPECT_ANY_THROW(step());
  FailingSgd::fails = false;
  restore(strategy_, of_optimizer, {{"optimizer", optimizer_}});
  expect_error([&] { step(); }, Code::FailedPrecondition, errors::kTornWeights, {"restore"});
  restore(strategy_, of_model, {{"model", model_}});
  step();
  FailingSgd::fails = true;
  EXPECT_ANY_THROW(step());
  FailingSgd::fails = false;
  expect_error([&] { step(); }, Code::FailedPrecondition, errors::kTornWeights, {"restore"});
}

TEST_P(RestoredFailure, OfARunLeavesNothingBehind) {
  optimizer_.set_accumulate(2);
  steps(2);
  const Snapshot snapshot = capture(strategy_, parts());
  const auto expected = steps(4);
  step();
  EXPECT_ANY_THROW(step(/*fails_before_minimize=*/true));
  EXPECT_NE(strategy_.last_failure(), std::nullopt);
  restore(strategy_, snapshot, parts());
  EXPECT_EQ(first_difference(steps(4), expected), "");
}

INSTANTIATE_TEST_SUITE_P(Replicas, RestoredFailure, testing::Values(1, 2, 4));

}  // namespace
}  // namespace lockstep
