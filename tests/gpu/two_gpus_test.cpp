#include <ATen/ops/full.h>
#include <ATen/ops/zeros.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <cstdlib>
#include <iostream>

#include "lockstep/base/error.h"
#include "lockstep/strategy/devices.h"
#include "lockstep/strategy/variable.h"
#include "tests/gpu/gpu_support.h"
#include "tests/support/replicas.h"

// A process's first operations, and effects that only two GPUs show. Logical replicas of one GPU do as much of it as
// they can.
namespace lockstep {
namespace {

class GpuPairs : public testing::TestWithParam<bool> {
 protected:
  void SetUp() override {
    if (GetParam() && visible_gpus() < 2) GTEST_SKIP() << "needs two GPUs, and " << visible_gpus() << " is visible";
  }
  MirroredOptions options() const { return {.devices = GetParam() ? gpus(2) : logical_gpus(2)}; }
};
INSTANTIATE_TEST_SUITE_P(, GpuPairs, testing::Bool(),
                         [](const auto& each) { return each.param ? "TwoGpus" : "OneGpu"; });

/// In a separate process, which has not used CUDA before.
[[noreturn]] void train_first(const MirroredOptions& options) {
  alarm(120);  // the parent waits without a limit
  try {
    MirroredStrategy strategy(options);
    const auto sums = strategy.run([] {
      const at::Tensor mine = at::full({1001}, 1.0 + my_id(), get_replica_context().device());
      return get_replica_context().all_reduce(ReduceOp::Sum, mine);
    });
    for (const at::Tensor& sum : sums) {
      if (sum.min().item<double>() != 3.0 || sum.max().item<double>() != 3.0) std::_Exit(2);
    }
  } catch (const std::exception& e) {
    std::cerr << e.what() << '\n';
    std::_Exit(3);
  }
  std::_Exit(0);
}

TEST_P(GpuPairs, AStrategyIsAProcesssFirstUseOfCuda) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");  // starts the program again
  EXPECT_EXIT(train_first(options()), testing::ExitedWithCode(0), "");
}

TEST_P(GpuPairs, TheFirstReplicasValueIsReadWhenItIsThere) {
  MirroredStrategy strategy(options());
  Variable value = strategy.make_variable(
      at::zeros({1001}), {.synchronization = Synchronization::OnRead, .aggregation = Aggregation::OnlyFirstReplica});
  for (int round = 1; round <= 20; ++round) {
    const auto sums = strategy.run([&] {
      const at::Device here = get_replica_context().device();
      const at::Tensor mine = my_id() == 0 ? slow_zeros({1001}) : at::full({1001}, -5.0, here);
      value.assign(mine.to(here).add(round));
      at::Tensor first;
      {
        const SyncOnReadScope together;
        first = value;
      }
      value.assign(at::full({1001}, -7.0, here));  // the others must not see this any more
      EXPECT_EQ(first.device(), here);
      return first.add(my_id() == 0 ? at::zeros({1}, here) : slow_zeros({1}).to(here)).sum();
    });
    for (const at::Tensor& sum : sums) EXPECT_EQ(sum.item<double>(), 1001.0 * round);
  }
}

TEST_P(GpuPairs, ATensorOfAnotherGpuIsRefused) {
  if (!GetParam()) GTEST_SKIP() << "needs two GPUs; strategy_test has what can be shown without";
  MirroredStrategy strategy(options());
  EXPECT_THROW(strategy.run([] { get_replica_context().all_reduce(ReduceOp::Sum, at::zeros({2}, kGpu)); }),
               InvalidArgument);
  EXPECT_THROW(strategy.run([] { get_replica_context().all_gather(at::zeros({2}, kGpu), 0); }), InvalidArgument);
}

}  // namespace
}  // namespace lockstep
