#pragma once

#include <ATen/ops/full.h>
#include <ATen/ops/ones.h>
#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <thread>

#include "tests/support/replicas.h"
#include "tests/support/same_bits.h"
#include "tests/support/watchdog.h"

namespace lockstep {

/// Waits until `count` threads have arrived; false on a timeout.
class Rendezvous {
 public:
  explicit Rendezvous(int count) : missing_(count) {}
  bool arrive() {
    --missing_;
    for (const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(30); missing_ > 0;) {
      if (std::chrono::steady_clock::now() > end) return false;
      std::this_thread::yield();
    }
    return true;
  }

 private:
  std::atomic<int> missing_;
};

/// One strategy, for several numbers of replicas.
class RunTest : public testing::TestWithParam<int> {
 protected:
  const Watchdog watchdog{std::chrono::seconds(120), testing::UnitTest::GetInstance()->current_test_info()->name()};
  const int replicas = GetParam();
  MirroredStrategy strategy{on_devices(replicas)};

  /// Whether the strategy still works.
  void expect_usable() {
    const auto sums = strategy.run([] { return get_replica_context().all_reduce(ReduceOp::Sum, at::ones({2})); });
    for (const auto& sum : sums) EXPECT_TRUE(same_bits(sum, at::full({2}, replicas, at::kFloat)));
  }
};

}  // namespace lockstep
