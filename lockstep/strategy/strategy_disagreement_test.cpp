#include <ATen/ops/full.h>
#include <ATen/ops/ones.h>

#include <array>
#include <functional>
#include <vector>

#include "tests/support/errors.h"
#include "tests/support/logged_lines.h"
#include "tests/support/run_test.h"

// Replicas that do not make the same collectives, or not in time: the same error for all of them, and none waits for ever.
namespace lockstep {
namespace {

class DisagreementTest : public RunTest {};
INSTANTIATE_TEST_SUITE_P(Replicas, DisagreementTest, testing::Values(2, 3, 5));

TEST_P(DisagreementTest, IsTheSameErrorOnEveryReplicaWhoeverIsOdd) {
  const auto odd_calls = std::to_array<std::function<void(ReplicaContext&, bool)>>({
      [](ReplicaContext& r, bool odd) { r.all_reduce(ReduceOp::Sum, at::ones({odd ? 3 : 2})); },
      [](ReplicaContext& r, bool odd) { r.all_reduce(ReduceOp::Sum, at::ones({2}, odd ? at::kInt : at::kFloat)); },
      [](ReplicaContext& r, bool odd) {
        r.all_reduce(ReduceOp::Sum, at::ones({2}, odd ? at::kComplexFloat : at::kFloat));
      },
      [](ReplicaContext& r, bool odd) { r.all_reduce(odd ? ReduceOp::Mean : ReduceOp::Sum, at::ones({2})); },
      [](ReplicaContext& r, bool odd) { r.all_reduce(ReduceOp::Sum, std::vector(odd ? 2 : 1, at::ones({2}))); },
      [](ReplicaContext& r, bool odd) { r.all_reduce(ReduceOp::Sum, at::ones({odd ? 40000 : 40001})); },
      [](ReplicaContext& r, bool odd) {
        r.all_gather(at::ones({2, odd ? 3 : 2}), 0);
      },
      [](ReplicaContext& r, bool odd) {
        r.all_gather(at::ones({2, 2}), odd ? 1 : 0);
      },
      [](ReplicaContext& r, bool odd) {
        r.all_gather(at::ones({2, 2}).requires_grad_(), odd ? 1 : 0);
      },
  });
  for (const auto& call : odd_calls) {
    for (int odd = 0; odd < replicas; ++odd) {
      const auto texts = strategy.run([&] {
        const SeenError seen = error_of([&] { call(get_replica_context(), my_id() == odd); });
        EXPECT_EQ(get_replica_context().all_reduce(ReduceOp::Sum, 1), replicas) << "after " << seen.text;
        return seen.text;
      });
      for (const auto& text : texts) EXPECT_EQ(text, texts[0]);
    }
  }
}

TEST_P(DisagreementTest, InsideBackwardArrivesAsItself) {
  for (int odd = 0; odd < replicas; ++odd) {
    const SeenError seen = error_of([&] {
      strategy.run([&] {
        at::Tensor x = at::ones({2}).requires_grad_();
        x.register_hook([&](const at::Tensor& g) {
          return get_replica_context().all_reduce(ReduceOp::Sum, my_id() == odd ? g.sum() : g);
        });
        x.sum().backward();
      });
    });
    EXPECT_EQ(seen.number, errors::kShape);
    strategy.run([&] {
      at::Tensor x = at::ones({2}).requires_grad_();
      get_replica_context().all_reduce(ReduceOp::Sum, x).sum().backward();
      EXPECT_EQ(x.grad()[0].item<float>(), static_cast<float>(replicas));
    });
  }
}

TEST_P(DisagreementTest, BackwardOfSomeReplicasOnlyIsAnErrorAndNoHang) {
  const SeenError seen = error_of([&] {
    strategy.run([&] {
      at::Tensor x = at::ones({2}).requires_grad_();
      const at::Tensor y = get_replica_context().all_reduce(ReduceOp::Sum, x);
      if (my_id() > 0) y.sum().backward();
    });
  });
  EXPECT_EQ(seen.number, errors::kUnequalMeetings);
}

// ---------------------------------------------------------------------------------------------------------------------
// Deadlines

TEST_P(DisagreementTest, ATimeoutIsAnErrorForAllAndTheNextCallIsFine) {
  const LoggedLines quiet;
  for (int late = 0; late < replicas; ++late) {
    const int missed = quiet.count("deadline exceeded");
    strategy.run([&] {
      auto& replica = get_replica_context();
      const SeenError seen = error_of([&] {
        if (my_id() == late) quiet.await("deadline exceeded", missed + 1);
        replica.all_reduce(ReduceOp::Sum, at::ones({}), {.timeout_seconds = 0.005});
      });
      EXPECT_EQ(seen.code, Code::DeadlineExceeded);
      EXPECT_EQ(seen.number, errors::kTimeout);
      EXPECT_EQ(replica.all_reduce(ReduceOp::Sum, 1, {.timeout_seconds = 60}), replicas);
      EXPECT_EQ(replica.all_gather(at::ones({1}), 0, {.timeout_seconds = 60}).size(0), replicas);
    });
  }
}

TEST_P(DisagreementTest, TheStrategysTimeoutHoldsForEveryCall) {
  const LoggedLines quiet;
  MirroredStrategy hasty({.devices = test_devices(replicas), .communication = {.timeout_seconds = 0.005}});
  const auto late_call = [&](auto&& call) {
    const int missed = quiet.count("deadline exceeded");
    return error_of([&] {
      hasty.run([&] {
        if (my_id() == replicas - 1) quiet.await("deadline exceeded", missed + 1);
        call(get_replica_context());
      });
    });
  };
  EXPECT_EQ(late_call([](ReplicaContext& r) { r.all_reduce(ReduceOp::Sum, at::ones({})); }).number, errors::kTimeout);
  EXPECT_EQ(late_call([](ReplicaContext& r) { r.all_reduce(ReduceOp::Sum, std::vector{at::ones({})}); }).number,
            errors::kTimeout);
  EXPECT_EQ(late_call([](ReplicaContext& r) { r.all_gather(at::ones({1}), 0); }).number, errors::kTimeout);
  EXPECT_EQ(late_call([](ReplicaContext& r) { r.merge_call([](Strategy&) {}); }).number, errors::kTimeout);
}

}  // namespace
}  // namespace lockstep
