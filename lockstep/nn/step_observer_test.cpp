#include "lockstep/nn/step_observer.h"

#include <gtest/gtest.h>
#include <torch/nn/modules/linear.h>
#include <torch/optim/sgd.h>

#include <functional>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "lockstep/base/error.h"
#include "lockstep/base/logging.h"
#include "lockstep/nn/loss.h"
#include "lockstep/nn/mirrored_optimizer.h"
#include "lockstep/strategy/mirrored_strategy.h"
#include "tests/support/errors.h"
#include "tests/support/replicas.h"

namespace lockstep {
namespace {

/// Records the moments of each replica, and throws on demand.
class Recorder final : public StepObserver {
 public:
  explicit Recorder(int replicas, std::string name = "")
      : name_(std::move(name)), seen_(static_cast<std::size_t>(replicas)) {}

  std::string throw_at;  ///< a moment
  int only_on = -1;      ///< a replica; -1: on all
  std::function<std::int64_t(const StepMoment&)> marks = [](const StepMoment&) { return 7; };

  const std::string& seen(int replica) const { return seen_[static_cast<std::size_t>(replica)]; }
  void forget() {
    for (std::string& each : seen_) each.clear();
  }

  void run_begins(int replica) override { see(replica, "run_begins"); }
  void before_backward(const StepMoment& moment, const at::Tensor& loss) override {
    EXPECT_EQ(loss.numel(), 1);
    see(moment, "before_backward");
  }
  void gradients_wait(const StepMoment& moment) override { see(moment, "gradients_wait"); }
  void gradients_taken(const StepMoment& moment) override { see(moment, "gradients_taken"); }
  void gradients_shown(const StepMoment& moment) override { see(moment, "gradients_shown"); }
  std::int64_t mark(const StepMoment& moment) override { return marks(moment); }
  void agreed(const StepMoment& moment) override { see(moment, "agreed"); }
  void updated(const StepMoment& moment) override { see(moment, "updated"); }
  void dropped(const StepMoment& moment) override { see(moment, "dropped"); }
  void run_ended() override { see(0, "run_ended"); }

 private:
  void see(const StepMoment& moment, const char* what) { see(moment.replica(), what); }
  void see(int replica, const char* what) {
    seen_[static_cast<std::size_t>(replica)] += name_ + what + " ";
    if (throw_at == what && (only_on < 0 || only_on == replica)) throw std::runtime_error("thrown by an observer");
  }

  const std::string name_;
  std::vector<std::string> seen_;
};

class StepObserverTest : public testing::Test {
 protected:
  StepObserverTest() { set_log_severity(Severity::Silent); }

  at::Tensor loss() { return average_loss(model->forward(at::ones({2, 3})).sum(1), 2 * kReplicas); }
  void step() {
    strategy.run([&] { optimizer.minimize(loss()); });
  }
  std::shared_ptr<Recorder> attach(std::string name = "") {
    auto recorder = std::make_shared<Recorder>(kReplicas, std::move(name));
    optimizer.observe(recorder);
    return recorder;
  }

  static constexpr int kReplicas = 3;
  MirroredStrategy strategy{{.devices = test_devices(kReplicas)}};
  MirroredModule<torch::nn::LinearImpl> model = strategy.make<torch::nn::Linear>(3, 2);
  MirroredOptimizer<torch::optim::SGD> optimizer =
      strategy.make_optimizer<torch::optim::SGD>(model, torch::optim::SGDOptions(0.1));
};

TEST_F(StepObserverTest, SeesTheMomentsOfAStepInOrder) {
  const auto recorder = attach();
  step();
  const std::string moments = "run_begins before_backward gradients_shown agreed dropped updated ";
  EXPECT_EQ(recorder->seen(0), moments + "run_ended ");
  EXPECT_EQ(recorder->seen(1), moments);
  EXPECT_EQ(recorder->seen(2), moments);
}

TEST_F(StepObserverTest, SeesGradientsWaitForTheProgramBetweenTheParts) {
  const auto recorder = attach();
  strategy.run([&] {
    optimizer.backward(loss());
    optimizer.reduce_gradients();
    optimizer.clip_value(1.0);
    optimizer.step();
  });
  EXPECT_EQ(recorder->seen(1),
            "run_begins before_backward gradients_wait gradients_taken gradients_shown agreed gradients_wait "
            "gradients_taken gradients_wait gradients_taken dropped updated ");
}

TEST_F(StepObserverTest, ACallInsideAWindowEndsInGradientsThatWait) {
  optimizer.set_accumulate(2);
  const auto recorder = attach();
  step();
  EXPECT_EQ(recorder->seen(1), "run_begins before_backward gradients_wait ");
}

TEST_F(StepObserverTest, ObserversAreCalledInTheOrderInWhichTheyWereAttached) {
  std::vector<std::string> order;
  struct Named final : StepObserver {
    Named(std::string as, std::vector<std::string>& into) : name(std::move(as)), order(into) {}
    void updated(const StepMoment& moment) override {
      if (moment.replica() == 0) order.push_back(name);
    }
    std::string name;
    std::vector<std::string>& order;
  };
  for (const char* const name : {"first", "second", "third"}) optimizer.observe(std::make_shared<Named>(name, order));
  step();
  EXPECT_EQ(order, (std::vector<std::string>{"first", "second", "third"}));
}

TEST_F(StepObserverTest, AMomentNamesItsOptimizerAndTheUpdatesMade) {
  auto other = strategy.make_optimizer<torch::optim::SGD>(model, torch::optim::SGDOptions(0.1));
  struct Asks final : StepObserver {
    void updated(const StepMoment& moment) override {
      if (moment.replica() > 0) return;
      EXPECT_TRUE(moment.is_of(*mine));
      EXPECT_FALSE(moment.is_of(*theirs));
      EXPECT_EQ(moment.steps(), ++steps);
    }
    const MirroredOptimizerBase *mine = nullptr, *theirs = nullptr;
    std::int64_t steps = 0;
  };
  const auto asks = std::make_shared<Asks>();
  asks->mine = &optimizer;
  asks->theirs = &other;
  optimizer.observe(asks);
  step();
  step();
  strategy.run([&] { other.minimize(loss()); });
  EXPECT_EQ(asks->steps, 2);
}

TEST_F(StepObserverTest, WhatAnObserverThrowsBeforeTheUpdateLeavesAllWeightsAsTheyAre) {
  const auto recorder = attach();
  step();
  for (const char* const moment : {"run_begins", "before_backward", "gradients_shown", "agreed"}) {
    for (const int replica : {-1, 0, 1, 2}) {
      SCOPED_TRACE(std::string(moment) + " on replica " + std::to_string(replica));
      const at::Tensor before = model->weight.clone();
      const std::int64_t steps = optimizer.steps();
      recorder->throw_at = moment;
      recorder->only_on = replica;
      EXPECT_THROW(step(), std::runtime_error);
      EXPECT_TRUE(model->weight.equal(before));
      EXPECT_EQ(optimizer.steps(), steps);
      recorder->throw_at = "";
      step();  // and training continues
      EXPECT_EQ(optimizer.steps(), steps + 1);
      EXPECT_FALSE(model->weight.equal(before));
    }
  }
}

TEST_F(StepObserverTest, WhatItThrowsAfterTheUpdateFailsTheRunAndTheUpdateIsMade) {
  const auto recorder = attach();
  for (const char* const moment : {"updated", "run_ended"}) {
    for (const int replica : {-1, 0}) {
      SCOPED_TRACE(std::string(moment) + " on replica " + std::to_string(replica));
      const at::Tensor before = model->weight.clone();
      const std::int64_t steps = optimizer.steps();
      recorder->throw_at = moment;
      recorder->only_on = replica;
      EXPECT_THROW(step(), std::runtime_error);
      EXPECT_FALSE(model->weight.equal(before));
      EXPECT_EQ(optimizer.steps(), steps + 1);
      recorder->throw_at = "";
      step();
      EXPECT_EQ(optimizer.steps(), steps + 2);
    }
  }
}

TEST_F(StepObserverTest, AnExceptionEndsTheListOfObservers) {
  const auto first = attach(), second = attach();
  first->throw_at = "before_backward";
  EXPECT_THROW(step(), std::runtime_error);
  EXPECT_EQ(second->seen(0), "run_begins ");
}

TEST_F(StepObserverTest, MarksThatDifferBetweenReplicasAreAnErrorOnAllOfThem) {
  const auto recorder = attach();
  recorder->marks = [](const StepMoment& moment) { return moment.replica() == 2 ? 8 : 7; };
  const at::Tensor before = model->weight.clone();
  const SeenError seen = error_of([&] { step(); });
  EXPECT_EQ(seen.code, Code::FailedPrecondition) << seen.text;
  EXPECT_EQ(seen.number, errors::kDifferentCollective) << seen.text;
  EXPECT_TRUE(contains(seen.text, "replica 0: 7, replica 1: 7, replica 2: 8")) << seen.text;
  EXPECT_TRUE(model->weight.equal(before));
  EXPECT_EQ(recorder->seen(1), "run_begins before_backward gradients_shown ");
}

TEST_F(StepObserverTest, IsAttachedOutsideOfRunAndIsNoNull) {
  const SeenError inside = error_of([&] { strategy.run([&] { attach(); }); });
  EXPECT_EQ(inside.code, Code::FailedPrecondition) << inside.text;
  const SeenError null = error_of([&] { optimizer.observe(nullptr); });
  EXPECT_EQ(null.code, Code::InvalidArgument) << null.text;
}

}  // namespace
}  // namespace lockstep
