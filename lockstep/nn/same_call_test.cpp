#include <gtest/gtest.h>
#include <torch/csrc/autograd/generated/variable_factories.h>
#include <torch/nn/modules/linear.h>
#include <torch/optim/sgd.h>

#include <functional>
#include <string>

#include "lockstep/base/error.h"
#include "lockstep/base/logging.h"
#include "lockstep/nn/grad_scaler.h"
#include "lockstep/nn/mirrored_optimizer.h"
#include "lockstep/strategy/mirrored_strategy.h"
#include "tests/support/errors.h"
#include "tests/support/replicas.h"

// Replicas that call different optimizers, or one in different ways: an error on all of them, and no weight has
// changed.
namespace lockstep {
namespace {

class SameCall : public testing::Test {
 protected:
  SameCall() { set_log_severity(Severity::Silent); }

  static int replica() { return get_replica_context().replica_id_in_sync_group(); }
  at::Tensor loss_of(MirroredModule<torch::nn::LinearImpl>& model) { return model->forward(torch::ones({2, 3})).sum(); }

  void expect_refused(const std::string& part, const std::function<void()>& on_replica) {
    const auto before = a->weight.clone(), other_before = b->weight.clone();
    const SeenError seen = error_of([&] { strategy.run([&] { on_replica(); }); });
    EXPECT_EQ(seen.code, Code::FailedPrecondition) << seen.text;
    EXPECT_EQ(seen.number, errors::kDifferentCollective) << seen.text;
    EXPECT_TRUE(contains(seen.text, part)) << seen.text;
    EXPECT_TRUE(a->weight.equal(before));
    EXPECT_TRUE(b->weight.equal(other_before));
    strategy.run([&] { of_a.minimize(loss_of(a)); });  // and training continues
    EXPECT_EQ(of_a.steps(), ++steps);
    EXPECT_EQ(of_b.steps(), 0);
  }

  MirroredStrategy strategy{{.devices = test_devices(3)}};
  MirroredModule<torch::nn::LinearImpl> a = strategy.make<torch::nn::Linear>(3, 2),
                                        b = strategy.make<torch::nn::Linear>(3, 700);
  MirroredOptimizer<torch::optim::SGD> of_a =
                                           strategy.make_optimizer<torch::optim::SGD>(a, torch::optim::SGDOptions(0.1)),
                                       of_b =
                                           strategy.make_optimizer<torch::optim::SGD>(b, torch::optim::SGDOptions(0.1));
  std::int64_t steps = 0;
};

TEST_F(SameCall, DifferentOptimizers) {
  expect_refused("different optimizers",
                 [&] { replica() == 0 ? of_a.minimize(loss_of(a)) : of_b.minimize(loss_of(b)); });
  expect_refused("different optimizers", [&] {
    auto& first = replica() == 2 ? of_b : of_a;
    first.backward(replica() == 2 ? loss_of(b) : loss_of(a));
    first.reduce_gradients();
    first.step();
  });
}

TEST_F(SameCall, StepInParts) {
  expect_refused("in different ways", [&] {
    if (replica() != 1) {
      of_a.minimize(loss_of(a));
      return;
    }
    of_a.backward(loss_of(a));
    of_a.reduce_gradients();
    of_a.step();
  });
  expect_refused("replica 0 called reduce_gradients(Sum) while replica 1 called reduce_gradients(Mean)", [&] {
    of_a.backward(loss_of(a));
    of_a.reduce_gradients(replica() == 0 ? ReduceOp::Sum : ReduceOp::Mean);
    of_a.step();
  });
}

TEST_F(SameCall, AWindowThatOneReplicaHasBegunAnew) {
  of_a.set_accumulate(2);
  const SeenError seen = error_of([&] {
    strategy.run([&] {
      for (int call = 0; call < 3; ++call) {
        if (replica() == 0 && call == 1) of_a.zero_grad();
        of_a.minimize(loss_of(a));
      }
    });
  });
  EXPECT_EQ(seen.number, errors::kDifferentCollective) << seen.text;
  EXPECT_TRUE(contains(seen.text, "minimize a different number of times")) << seen.text;
  EXPECT_EQ(of_a.steps(), 0);
  strategy.run([&] {  // it left nothing behind
    EXPECT_FALSE(of_a.minimize(loss_of(a)));
    of_a.zero_grad();
    EXPECT_FALSE(of_a.minimize(loss_of(a)));
    EXPECT_TRUE(of_a.minimize(loss_of(a)));
    of_a.minimize(loss_of(a));
    if (replica() == 0) of_a.backward(loss_of(a));
    of_a.reduce_gradients();
    of_a.step();
  });
}

TEST_F(SameCall, ScalerOnOneReplica) {
  GradScaler scaler(strategy);
  expect_refused("GradScaler", [&] { replica() == 0 ? of_a.minimize(loss_of(a), scaler) : of_a.minimize(loss_of(a)); });
}

TEST_F(SameCall, ScalersOfDifferentScale) {
  GradScaler scaler(strategy), other(strategy);
  other.load_state({.scale = 1024.0});
  expect_refused("different arguments", [&] { of_a.minimize(loss_of(a), replica() == 0 ? scaler : other); });
}

TEST_F(SameCall, Clipping) {
  const auto clipped = [&](const std::function<void()>& clip) {
    return [this, clip] {
      of_a.backward(loss_of(a));
      of_a.reduce_gradients();
      clip();
      of_a.step();
    };
  };
  expect_refused("replica 0 gave 1, replica 1 gave 10",
                 clipped([&] { of_a.clip_global_norm(replica() == 0 ? 1.0 : 10.0); }));
  expect_refused("different arguments to step", clipped([&] { of_a.clip_value(replica() == 0 ? 0.5 : 0.25); }));
  expect_refused("different arguments to step", clipped([&] {
                   if (replica() == 0) of_a.clip_value(0.5);
                 }));
  expect_refused("different arguments to step", clipped([&] {
                   if (replica() == 0) of_a.clip_value(0.25);
                   of_a.clip_value(0.5);
                 }));
}

}  // namespace
}  // namespace lockstep
