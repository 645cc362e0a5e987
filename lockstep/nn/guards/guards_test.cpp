#include "lockstep/nn/guards/guards.h"

#include <gtest/gtest.h>
#include <torch/nn/modules/linear.h>
#include <torch/optim/sgd.h>

#include <vector>

#include "lockstep/base/error.h"
#include "lockstep/nn/grad_scaler.h"
#include "lockstep/nn/mirrored_optimizer.h"
#include "lockstep/nn/optimizer_core.h"
#include "lockstep/strategy/mirrored_strategy.h"
#include "tests/support/errors.h"
#include "tests/support/logged_lines.h"

// Each guard in isolation, given the moments of imaginary steps.
namespace lockstep::detail {
namespace {

class Guards : public testing::Test {
 protected:
  static constexpr std::size_t kReplicas = 2;

  OptimizerCore& core() { return *optimizer.core(); }
  ReplicaPart& part(std::size_t k = 0) { return *core().replicas[k]; }
  StepMoment moment(const char* call = "minimize", std::size_t k = 0) { return {core(), part(k), call}; }
  at::Tensor& gradient(std::size_t k = 0) {
    at::Tensor leaf = core().module->parameters()[0].leaves[k];
    return leaf.mutable_grad();
  }
  at::Tensor ones() { return at::ones_like(core().module->parameters()[0].leaves[0]).detach(); }

  MirroredStrategy strategy{{.devices = cpus(kReplicas)}};
  MirroredModule<torch::nn::LinearImpl> model = strategy.make<torch::nn::Linear>(3, 2);
  MirroredOptimizer<torch::optim::SGD> optimizer =
      strategy.make_optimizer<torch::optim::SGD>(model, torch::optim::SGDOptions(0.1));
  const at::Tensor no_loss;
};

TEST_F(Guards, LeftoverGradientsAreWarnedOfOnceAndOnlyBeforeTheFirstBackward) {
  const auto guard = make_leftover_gradients(core());
  const LoggedLines log;
  gradient() = at::zeros_like(ones());
  guard->before_backward(moment(), no_loss);  // zero_grad may leave zeros
  gradient() = ones();
  part().progress.stage = GradientStage::Computed;
  guard->before_backward(moment(), no_loss);
  EXPECT_EQ(log.count("has a gradient on replica 0"), 0);
  part().progress.stage = GradientStage::None;
  guard->before_backward(moment(), no_loss);
  guard->before_backward(moment(), no_loss);
  EXPECT_EQ(log.count("has a gradient on replica 0"), 1);
}

TEST_F(Guards, GradientsChangedBeforeTheReductionAreWarnedOf) {
  const auto guard = make_changed_gradients(core());
  const LoggedLines log;
  gradient() = ones();
  part().progress.stage = GradientStage::Computed;
  guard->gradients_wait(moment("backward"));
  guard->gradients_taken(moment("reduce_gradients"));
  EXPECT_EQ(log.count("was changed on replica 0"), 0);
  guard->gradients_wait(moment("backward"));
  gradient().mul_(2);
  guard->gradients_taken(moment("reduce_gradients"));
  EXPECT_EQ(log.count("was changed on replica 0"), 1);
}

TEST_F(Guards, SumsChangedBeforeTheStepAreAnErrorThatNamesTheCall) {
  const auto guard = make_changed_gradients(core());
  gradient() = ones();
  part().progress.stage = GradientStage::Reduced;
  guard->gradients_wait(moment("reduce_gradients"));
  guard->gradients_taken(moment("step"));
  gradient().mul_(2);
  const SeenError seen = error_of([&] { guard->gradients_taken(moment("step")); });
  EXPECT_EQ(seen.number, errors::kOptimizer) << seen.text;
  EXPECT_TRUE(contains(seen.text, "was changed between reduce_gradients and step")) << seen.text;
  guard->dropped(moment());
  EXPECT_NO_THROW(guard->gradients_taken(moment("step")));
}

TEST_F(Guards, SizesThatWereNotGivenDifferFromNone) {
  const auto guard = make_different_sizes(core());
  const LoggedLines log;
  const std::vector<std::int64_t> equal{8, 0, 8}, different{0, 8, 4};
  guard->marks_differ(moment(), equal, "worker");
  EXPECT_EQ(log.count("average_loss was given the size"), 0);
  guard->marks_differ(moment(), different, "worker");
  guard->marks_differ(moment(), different, "worker");
  EXPECT_EQ(log.count("average_loss was given the size 8 on worker 1 and 4 on worker 2"), 1);
}

TEST_F(Guards, AnUnusedWindowIsWarnedOfAtTheSecondStepByParts) {
  optimizer.set_accumulate(2);
  const auto guard = make_unused_settings(core());
  const LoggedLines log;
  for (int step = 0; step < 3; ++step) {
    guard->gradients_wait(moment("backward"));
    guard->gradients_taken(moment("reduce_gradients"));
    guard->dropped(moment());
    EXPECT_EQ(log.count("set_accumulate applies only to minimize"), step == 0 ? 0 : 1);
  }
}

TEST_F(Guards, AWindowOfSeveralBackwardsIsUsed) {
  optimizer.set_accumulate(2);
  const auto guard = make_unused_settings(core());
  const LoggedLines log;
  for (int step = 0; step < 3; ++step) {
    for (int i = 0; i < 2; ++i) guard->gradients_wait(moment("backward"));
    guard->gradients_taken(moment("reduce_gradients"));
    guard->dropped(moment());
  }
  EXPECT_EQ(log.count("set_accumulate applies only to minimize"), 0);
}

TEST_F(Guards, UnusedClippingIsWarnedOfUnlessTheProgramClips) {
  optimizer.set_clip_value(1.0);
  const auto guard = make_unused_settings(core());
  const LoggedLines log;
  part().progress.clip_mark = 1.0;
  guard->gradients_taken(moment("step"));
  EXPECT_EQ(log.count("these gradients are not clipped"), 0);
  part().progress.clip_mark = 0;
  guard->gradients_taken(moment("step"));
  EXPECT_EQ(log.count("these gradients are not clipped"), 1);
}

TEST_F(Guards, AStepThatNoGradientHasReachedIsWarnedOf) {
  const auto guard = make_unreached_parameters(core());
  const LoggedLines log;
  part().kinds[0] = GradientKind::Dense;
  guard->updated(moment());
  EXPECT_EQ(log.count("the loss reaches none of the optimizer's parameters"), 0);
  part().kinds[0] = GradientKind::None;
  guard->updated(moment());
  guard->updated(moment());
  EXPECT_EQ(log.count("the loss reaches none of the optimizer's parameters ('weight' is the first)"), 1);
}

TEST_F(Guards, AModuleThatGotAnotherParameterIsAnErrorOnEveryReplica) {
  const auto guard = make_changed_module(core());
  const auto look = [&] {
    for (std::size_t k = 0; k < kReplicas; ++k) guard->gradients_shown(moment("minimize", k));
  };
  look();
  for (std::size_t k = 0; k < kReplicas; ++k) EXPECT_NO_THROW(guard->agreed(moment("minimize", k)));
  core().module->replica(1)->register_parameter("late", ones());
  look();
  for (std::size_t k = 0; k < kReplicas; ++k)
    EXPECT_EQ(error_of([&] { guard->agreed(moment("minimize", k)); }).number, errors::kWrongModule);
}

TEST_F(Guards, AMeanOfRowsIsWarnedOfWhereGradientsAreSummed) {
  for (const ReduceOp op : {ReduceOp::Mean, ReduceOp::Sum}) {
    const auto guard = make_unfit_losses(core());
    const LoggedLines log;
    strategy.run([&] {
      const auto k = static_cast<std::size_t>(get_replica_context().local_index());
      guard->before_backward(moment("minimize", k),
                             model->forward(at::ones({2, 3}, at::TensorOptions(at::kCPU))).mean());
    });
    StepMoment agreed = moment();
    agreed.op = op;
    guard->agreed(agreed);
    EXPECT_EQ(log.count("the loss is a mean over this replica's rows"), op == ReduceOp::Sum ? 1 : 0);
  }
}

TEST_F(Guards, ALossThatWasScaledAlreadyIsAnError) {
  const auto guard = make_unfit_losses(core());
  GradScaler scaler(strategy);
  const SeenError seen = error_of([&] {
    strategy.run([&] {
      guard->before_backward(moment(),
                             scaler.scaled(model->forward(at::ones({2, 3}, at::TensorOptions(at::kCPU))).sum()));
    });
  });
  EXPECT_TRUE(contains(seen.text, "multiplied by the scale already")) << seen.text;
}

}  // namespace
}  // namespace lockstep::detail
