#include <ATen/ops/empty.h>
#include <ATen/ops/full.h>
#include <c10/cuda/CUDAGuard.h>
#include <c10/cuda/CUDAStream.h>
#include <gtest/gtest.h>

#include <chrono>
#include <future>
#include <set>
#include <vector>

#include "lockstep/base/error.h"
#include "lockstep/strategy/replica_context.h"
#include "tests/gpu/gpu_support.h"
#include "tests/support/replicas.h"

// Replicas of one GPU use separate streams: data that crosses from one to the other must have been computed, and its
// memory must not be reused too early.
namespace lockstep {
namespace {

class GpuStreams : public testing::TestWithParam<int> {
 protected:
  MirroredStrategy strategy{on_gpu(GetParam())};
  const int replicas = GetParam();
};
INSTANTIATE_TEST_SUITE_P(Replicas, GpuStreams, testing::Values(1, 2, 3, 4));

TEST_P(GpuStreams, EveryReplicaHasItsOwnAndReplicaZeroTheCallers) {
  const auto streams = strategy.run([] {
    EXPECT_EQ(get_replica_context().device(), kGpu);
    return static_cast<std::int64_t>(c10::cuda::getCurrentCUDAStream().id());
  });
  EXPECT_EQ(streams[0], c10::cuda::getCurrentCUDAStream().id());
  EXPECT_EQ(std::set<std::int64_t>(streams.begin(), streams.end()).size(), static_cast<std::size_t>(replicas));
}

TEST_P(GpuStreams, ReplicasWaitForWhatTheCallerHasStarted) {
  for (int round = 0; round < 20; ++round) {
    const at::Tensor x = slow_zeros({1001}).add(round);
    const auto sums = strategy.run([&] { return x.sum(); });
    for (const at::Tensor& sum : sums) EXPECT_EQ(sum.item<double>(), 1001.0 * round);
  }
}

TEST_P(GpuStreams, TheCallerWaitsForWhatReplicasHaveStarted) {
  for (int round = 0; round < 20; ++round) {
    const auto parts = strategy.run([&] { return slow_zeros({1001}).add(round + my_id()); });
    EXPECT_EQ(strategy.reduce(ReduceOp::Sum, parts)[1000].item<double>(),
              replicas * round + replicas * (replicas - 1) / 2);
  }
}

TEST_P(GpuStreams, ACollectiveWaitsForAllReplicas) {
  strategy.run([&] {
    for (int round = 0; round < 20; ++round) {
      at::Tensor mine = my_id() == round % replicas ? slow_zeros({70001}) : at::full({70001}, 0.0, kGpu);
      mine.add_(round + my_id());
      const at::Tensor sum = get_replica_context().all_reduce(ReduceOp::Sum, mine);
      mine = at::full({70001}, -1e9, kGpu);  // into memory that others have just read
      const double expected = replicas * round + replicas * (replicas - 1) / 2;
      EXPECT_EQ(sum.min().item<double>(), expected);
      EXPECT_EQ(sum.max().item<double>(), expected);
    }
  });
}

TEST_P(GpuStreams, MemoryOfAMergeFunctionsResultIsNotUsedAgainTooEarly) {
  strategy.run([&] {
    at::Tensor total = at::full({70001}, 0.0, kGpu);
    for (int round = 0; round < 40; ++round) {
      at::Tensor shared = get_replica_context().merge_call(
          [&](Strategy&, const PerReplica<at::Tensor>& all) { return all[0].add(1); }, at::full({70001}, 0.0, kGpu));
      const at::Tensor late = my_id() == 0 ? at::full({1}, 0.0, kGpu) : slow_zeros({1});
      total.add_(shared.add(late));
      shared.reset();
      for (int i = 0; i < 4; ++i) at::full({70001}, -1e9, kGpu);
    }
    EXPECT_EQ(total.min().item<double>(), 40.0);
    EXPECT_EQ(total.max().item<double>(), 40.0);
  });
}

/// The last replica drops it in a later run, while replica 0 gets memory on the stream on which the argument was made.
TEST_P(GpuStreams, MemoryOfAnArgumentThatAReplicaKeepsIsNotUsedAgainTooEarly) {
  if (replicas == 1) GTEST_SKIP() << "one replica has one stream";
  constexpr std::int64_t kSize = 1 << 20;
  for (int round = 0; round < 20; ++round) {
    at::Tensor x = at::full({kSize}, 1.0, kGpu), kept;
    strategy.run(
        [&](const at::Tensor& mine) {
          if (my_id() == replicas - 1) kept = mine;
        },
        x);
    x.reset();
    std::promise<void> is_dropped;
    const auto sums = strategy.run([&] {
      if (my_id() == replicas - 1) {
        const at::Tensor sum = kept.add(slow_zeros({1})).sum();
        kept.reset();
        is_dropped.set_value();
        return sum;
      }
      std::vector<at::Tensor> others;
      if (my_id() == 0) {
        EXPECT_EQ(is_dropped.get_future().wait_for(std::chrono::seconds(30)), std::future_status::ready);
        for (int i = 0; i < 8; ++i) others.push_back(at::full({kSize}, -1e9, kGpu));
      }
      return at::full({}, 0.0, kGpu);
    });
    EXPECT_EQ(sums[static_cast<std::size_t>(replicas) - 1].item<double>(), kSize);
  }
}

TEST_P(GpuStreams, CollectivesInsideBackwardMeet) {
  strategy.run([&] {
    const at::Tensor x = at::full({1001}, 1.0 + my_id(), kGpu).requires_grad_();
    get_replica_context().all_reduce(ReduceOp::Sum, x.mul(2)).sum().backward();
    EXPECT_EQ(x.grad().min().item<double>(), 2.0 * replicas);
    EXPECT_EQ(x.grad().max().item<double>(), 2.0 * replicas);
  });
}

TEST_P(GpuStreams, RunsNestInsideAMergeFunction) {
  strategy.run([&] {
    const at::Tensor mine = slow_zeros({1001}).add(my_id());
    const at::Tensor sum = get_replica_context().merge_call(
        [&](Strategy& inner, const PerReplica<at::Tensor>& all) {
          const auto doubled = inner.run([&](const at::Tensor& x) { return slow_zeros({1001}).add(x).mul(2); }, all);
          return inner.reduce(ReduceOp::Sum, doubled);
        },
        mine);
    EXPECT_EQ(sum.max().item<double>(), replicas * (replicas - 1));
    EXPECT_EQ(sum.min().item<double>(), replicas * (replicas - 1));
  });
}

TEST_P(GpuStreams, AFailedRunLeavesTheStrategyUsable) {
  for (int round = 0; round < 5; ++round) {
    EXPECT_THROW(strategy.run([&] {
      const at::Tensor x = slow_zeros({1001});
      if (my_id() == replicas - 1) throw std::runtime_error("on purpose");
      get_replica_context().all_reduce(ReduceOp::Sum, x);
    }),
                 std::exception);
    const auto parts = strategy.run([&] { return slow_zeros({7}).add(1); });
    EXPECT_EQ(strategy.reduce(ReduceOp::Sum, parts)[6].item<double>(), replicas);
  }
}

TEST_P(GpuStreams, AnotherCallersStreamIsReplicaZeros) {
  const c10::cuda::CUDAStream other = c10::cuda::getStreamFromPool();
  const c10::cuda::CUDAStreamGuard guard(other);
  const auto parts = strategy.run([&] {
    if (my_id() == 0) {
      EXPECT_EQ(c10::cuda::getCurrentCUDAStream(), other);
    }
    return slow_zeros({7}).add(1);
  });
  EXPECT_EQ(strategy.reduce(ReduceOp::Sum, parts)[6].item<double>(), replicas);
}

}  // namespace
}  // namespace lockstep
