#include <ATen/ops/arange.h>
#include <ATen/ops/full.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/tensor.h>
#include <gtest/gtest.h>

#include "lockstep/base/error.h"
#include "lockstep/strategy/extended.h"
#include "lockstep/strategy/variable.h"
#include "tests/gpu/gpu_support.h"
#include "tests/support/replicas.h"
#include "tests/support/same_bits.h"

namespace lockstep {
namespace {

TEST(GpuDevices, AreTheDefault) {
  const MirroredStrategy strategy;
  EXPECT_EQ(strategy.num_replicas_in_sync(), visible_gpus());
  EXPECT_EQ(strategy.devices()[0], "/job:localhost/replica:0/task:0/device:GPU:0");
  if (visible_gpus() == 1) {
    EXPECT_NE(strategy.describe().find("1 replica on GPU:0"), std::string::npos) << strategy.describe();
  }
  EXPECT_NE(MirroredStrategy(on_gpu(2)).describe().find("GPU:0/0, GPU:0/1"), std::string::npos);
}

TEST(GpuDevices, ThatAreNotHereAreRefused) {
  EXPECT_THROW(MirroredStrategy({.devices = {{"gpu:63"}}}), InvalidArgument);
  EXPECT_THROW(MirroredStrategy({.devices = {{"cpu:0", "gpu:63"}}}), InvalidArgument);
}

class GpuValues : public testing::TestWithParam<int> {
 protected:
  MirroredStrategy strategy{on_gpu(GetParam())};
  const int replicas = GetParam();
};
INSTANTIATE_TEST_SUITE_P(Replicas, GpuValues, testing::Values(1, 2, 3, 4, 5, 7));

TEST_P(GpuValues, WhatAFunctionMakesOnTheHostIsMovedToTheReplica) {
  struct Rows {
    at::Tensor x;
    std::vector<at::Tensor> more;
    at::Tensor none;
    int id;
  };
  const auto made = strategy.values_from_function([](const ValueContext& its) {
    const at::Tensor x = at::full({3}, its.replica_id_in_sync_group, at::kFloat);
    return Rows{x, {x.add(1), x.add(2)}, {}, its.replica_id_in_sync_group};
  });
  const auto sums = strategy.run(
      [](const Rows& mine) {
        EXPECT_EQ(mine.x.device(), kGpu);
        EXPECT_FALSE(mine.none.defined());
        EXPECT_EQ(mine.id, get_replica_context().replica_id_in_sync_group());
        return mine.x.add(mine.more[0]).add(mine.more[1]).sum();
      },
      made);
  int expected = 0;
  for (int k = 0; k < replicas; ++k) expected += 3 * (k + (k + 1) + (k + 2));
  EXPECT_EQ(strategy.reduce(ReduceOp::Sum, sums).item<int>(), expected);
}

TEST_P(GpuValues, ATensorOnTheHostIsAnErrorThatNamesTheCall) {
  const at::Tensor weight = at::ones({2, 2}, kGpu);
  try {
    strategy.run([&](const at::Tensor& x) { return x.matmul(weight); }, at::ones({2, 2}));
    FAIL() << "nothing was thrown";
  } catch (const c10::Error& error) {
    EXPECT_NE(std::string(error.what()).find("x.to(get_replica_context().device())"), std::string::npos)
        << error.what_without_backtrace();
  }
}

/// The same all_reduce by this many CPU replicas.
std::vector<at::Tensor> reduced_on_cpu(int replicas, ReduceOp op, const std::vector<at::Tensor>& values) {
  MirroredStrategy cpu(on_cpus(replicas));
  const auto results = cpu.run([&](const at::Tensor& mine) { return get_replica_context().all_reduce(op, mine); },
                               PerReplica<at::Tensor>(values));
  return {results.begin(), results.end()};
}

TEST_P(GpuValues, AllReduceHasTheBitsOfTheCpus) {
  for (const at::ScalarType type :
       {at::kFloat, at::kDouble, at::kHalf, at::kBFloat16, at::kInt, at::kLong, at::kByte}) {
    for (const std::int64_t size : {0, 1, 1001, 70001}) {
      for (const ReduceOp op : {ReduceOp::Sum, ReduceOp::Mean}) {
        SCOPED_TRACE(testing::Message() << type << " x " << size << " " << to_string(op));
        std::vector<at::Tensor> values;
        for (int k = 0; k < replicas; ++k) values.push_back(at::randn({size}).mul(100).to(type));
        const auto expected = reduced_on_cpu(replicas, op, values);
        const auto results =
            strategy.run([&](const at::Tensor& mine) { return get_replica_context().all_reduce(op, mine.to(kGpu)); },
                         PerReplica<at::Tensor>(values));
        for (int k = 0; k < replicas; ++k) {
          EXPECT_EQ(results[static_cast<std::size_t>(k)].device(), kGpu);
          EXPECT_TRUE(same_bits(results[static_cast<std::size_t>(k)].cpu(), expected[static_cast<std::size_t>(k)]));
        }
        const at::Tensor outside = strategy.reduce(
            op, strategy.run([](const at::Tensor& mine) { return mine.to(kGpu); }, PerReplica<at::Tensor>(values)));
        EXPECT_TRUE(same_bits(outside.cpu(), expected[0]));
      }
    }
  }
}

TEST_P(GpuValues, GatherConcatenatesInReplicaOrder) {
  const auto parts = strategy.run([] { return at::full({my_id() + 1, 2}, my_id(), kGpu); });
  const at::Tensor whole = strategy.gather(parts, 0);
  const auto inside = strategy.run([] {
    return get_replica_context().all_gather(at::full({my_id() + 1, 2}, my_id(), kGpu), 0);
  });
  EXPECT_EQ(whole.size(0), replicas * (replicas + 1) / 2);
  EXPECT_EQ(whole[whole.size(0) - 1][1].item<double>(), replicas - 1);
  for (const at::Tensor& mine : inside) EXPECT_TRUE(same_bits(mine.cpu(), whole.cpu()));
}

TEST_P(GpuValues, BroadcastReachesEveryDevice) {
  const auto spread = strategy.extended().broadcast_to(at::arange(5), strategy.run([] { return at::ones({}, kGpu); }));
  EXPECT_EQ(spread.size(), static_cast<std::size_t>(replicas));
  for (const at::Tensor& each : spread) {
    EXPECT_EQ(each.device(), kGpu);
    EXPECT_EQ(each[4].item<int>(), 4);
  }
}

TEST_P(GpuValues, VariablesLiveOnTheGpu) {
  Variable sum = strategy.make_variable(at::ones({3}), {.name = "sum", .aggregation = Aggregation::Sum});
  strategy.run([&] { sum.assign_add(at::full({3}, my_id() + 1.0, kGpu)); });
  for (const at::Tensor& component : sum.values()) {
    EXPECT_EQ(component.device(), kGpu);
    EXPECT_EQ(component[2].item<double>(), 1.0 + replicas * (replicas + 1) / 2.0);
  }
  Variable count = strategy.make_variable(
      at::full({}, 0.0),
      {.name = "count", .synchronization = Synchronization::OnRead, .aggregation = Aggregation::Sum});
  strategy.run([&] { count.assign_add(at::full({}, my_id() + 1.0, kGpu)); });
  EXPECT_EQ(count.read().item<double>(), replicas * (replicas + 1) / 2.0);
}

TEST_P(GpuValues, SparseRowsAreConcatenated) {
  const auto results = strategy.run([&] {
    const IndexedSlices mine{
        at::full({1, 2}, my_id(), kGpu), at::full({1}, my_id(), at::TensorOptions(kGpu).dtype(at::kLong)), {9, 2}};
    return get_replica_context().all_reduce(ReduceOp::Sum, mine);
  });
  for (const IndexedSlices& all : results) {
    EXPECT_EQ(all.values.size(0), replicas);
    EXPECT_EQ(all.indices[replicas - 1].item<int>(), replicas - 1);
  }
}

}  // namespace
}  // namespace lockstep
