#include "lockstep/strategy/cross_device_ops.h"

#include <ATen/ops/full.h>
#include <ATen/ops/maximum.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/randint.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/zeros.h>
#include <gtest/gtest.h>

#include <memory>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "tests/support/errors.h"
#include "tests/support/logged_lines.h"
#include "tests/support/replicas.h"
#include "tests/support/same_bits.h"

// The ways in which values travel between devices: our own, and those that a user writes.
namespace lockstep {
namespace {

/// Writes down what it is called for, and does what the default does.
struct Recording : CrossDeviceOps {
  Mirrored<at::Tensor> reduce(ReduceOp op, const PerReplica<at::Tensor>& value, const Devices& to,
                              const CommunicationOptions& options) override {
    note(std::string(to_string(op)));
    seen = options;
    return inner->reduce(op, value, to, options);
  }
  Mirrored<IndexedSlices> reduce_slices(ReduceOp op, const PerReplica<IndexedSlices>& value, const Devices& to,
                                        const CommunicationOptions& options) override {
    note("slices");
    return inner->reduce_slices(op, value, to, options);
  }
  Mirrored<at::Tensor> broadcast(const at::Tensor& value, const Devices& to) override {
    note("broadcast");
    return inner->broadcast(value, to);
  }
  Mirrored<at::Tensor> gather(const PerReplica<at::Tensor>& value, std::int64_t axis, const Devices& to,
                              const CommunicationOptions& options) override {
    note("gather");
    return inner->gather(value, axis, to, options);
  }

  void note(const std::string& call) {
    EXPECT_EQ(std::this_thread::get_id(), caller) << call << " on another thread";
    calls += calls.empty() ? call : " " + call;
  }
  /// What was called since the last time.
  std::string taken() { return std::exchange(calls, ""); }

  std::shared_ptr<CrossDeviceOps> inner = default_cross_device_ops();
  std::thread::id caller = std::this_thread::get_id();
  std::string calls;
  CommunicationOptions seen;
};

class CustomOpsTest : public testing::TestWithParam<int> {
 protected:
  const int replicas = GetParam();
  const std::shared_ptr<Recording> ops = std::make_shared<Recording>();
  MirroredStrategy strategy{
      {.devices = test_devices(replicas), .cross_device_ops = ops, .communication = {.bytes_per_pack = 7}}};
  const PerReplica<at::Tensor> ids = strategy.values_from_function(
      [](const ValueContext& c) { return at::full({2}, c.replica_id_in_sync_group, at::kFloat); });
  const float sum = static_cast<float>(replicas * (replicas - 1)) / 2;
};

INSTANTIATE_TEST_SUITE_P(Replicas, CustomOpsTest, testing::Values(1, 2, 3, 5));

TEST_P(CustomOpsTest, AreCalledForEveryReduction) {
  EXPECT_EQ(strategy.reduce(ReduceOp::Sum, ids)[0].item<float>(), sum);
  EXPECT_EQ(ops->taken(), "SUM");
  strategy.reduce(ReduceOp::Mean, ids, 0);  // sums along the axis, divided at the end
  EXPECT_EQ(ops->taken(), "SUM");
  strategy.extended().reduce_to(ReduceOp::Mean, ids, "cpu:0", {.bytes_per_pack = 9});
  EXPECT_EQ(ops->taken(), "MEAN");
  EXPECT_EQ(ops->seen.bytes_per_pack, 9) << "the options of the call stand above the strategy's";
  strategy.extended().batch_reduce_to(ReduceOp::Sum, {{ids, ids}, {ids, "cpu:0"}});
  EXPECT_EQ(ops->taken(), "SUM SUM");
  EXPECT_EQ(ops->seen.bytes_per_pack, 7);
  strategy.extended().broadcast_to(at::ones({}), ids);
  EXPECT_EQ(ops->taken(), "broadcast");
}

TEST_P(CustomOpsTest, AreCalledOnceForAllReplicasOfAnAllReduce) {
  const auto sums =
      strategy.run([&](const at::Tensor& mine) { return get_replica_context().all_reduce(ReduceOp::Sum, mine); }, ids);
  EXPECT_EQ(ops->taken(), "SUM");
  for (std::size_t k = 0; k < sums.size(); ++k) {
    EXPECT_EQ(sums[k][1].item<float>(), sum);
    for (std::size_t j = 0; j < k; ++j) EXPECT_FALSE(sums[j].is_alias_of(sums[k]));
  }
  strategy.run(
      [](const at::Tensor& mine) {
        const IndexedSlices rows{mine.reshape({1, 2}), at::zeros({1}, at::kLong), {4, 2}};
        const auto [a, b, sparse] =
            get_replica_context().all_reduce(ReduceOp::Mean, std::tuple(mine, mine.sum(), rows));
        EXPECT_EQ(sparse.indices.size(0), get_replica_context().num_replicas_in_sync());
        EXPECT_EQ(b.dim(), 0);
      },
      ids);
  EXPECT_EQ(ops->taken(), "slices MEAN MEAN");
}

TEST_P(CustomOpsTest, AreCalledForAggregatedAssignmentsAndReads) {
  const auto variable = [&](Aggregation aggregation, Synchronization when = Synchronization::OnWrite) {
    return strategy.make_variable(at::zeros({2}), {.synchronization = when, .aggregation = aggregation});
  };
  const auto assign = [&](Variable v) {
    strategy.run([&](const at::Tensor& mine) { v.assign(mine, ReadBack::No); }, ids);
  };
  Variable total = variable(Aggregation::Sum);
  assign(total);
  EXPECT_EQ(ops->taken(), "SUM");
  for (const auto& component : total.values()) EXPECT_EQ(component[0].item<float>(), sum);
  assign(variable(Aggregation::Mean));
  EXPECT_EQ(ops->taken(), "MEAN");
  assign(variable(Aggregation::OnlyFirstReplica));
  EXPECT_EQ(ops->taken(), "broadcast");
  assign(variable(Aggregation::None));
  EXPECT_EQ(ops->taken(), "");
  const Variable counter = variable(Aggregation::Sum, Synchronization::OnRead);
  assign(counter);
  EXPECT_EQ(ops->taken(), "");
  EXPECT_EQ(counter.read()[0].item<float>(), sum);
  EXPECT_EQ(ops->taken(), "SUM");
}

TEST_P(CustomOpsTest, GradientsGoThroughThemInBothDirections) {
  strategy.run([&] {
    at::Tensor x = at::ones({2}).requires_grad_();
    get_replica_context().all_reduce(ReduceOp::Sum, x).mul(my_id() + 1).sum().backward();
    EXPECT_EQ(x.grad()[0].item<float>(), sum + static_cast<float>(replicas));
  });
  EXPECT_EQ(ops->taken(), "SUM SUM");
}

TEST_P(CustomOpsTest, DisagreementIsFoundBeforeTheyAreCalled) {
  if (replicas == 1) return;  // one replica always agrees with itself
  const auto fails = [&](auto&& call) {
    return error_of([&] { strategy.run([&] { call(get_replica_context(), my_id() == 1); }); }).number;
  };
  EXPECT_EQ(
      fails([](ReplicaContext& r, bool odd) { r.all_reduce(odd ? ReduceOp::Sum : ReduceOp::Mean, at::ones({})); }),
      errors::kDifferentCollective);
  EXPECT_EQ(fails([](ReplicaContext& r, bool odd) { r.all_reduce(ReduceOp::Sum, at::ones({odd ? 1 : 2})); }),
            errors::kShape);
  EXPECT_EQ(fails([](ReplicaContext& r, bool odd) {
              r.all_reduce(ReduceOp::Sum, at::ones({1}, odd ? at::kInt : at::kFloat));
            }),
            errors::kDtype);
  EXPECT_EQ(
      fails([](ReplicaContext& r, bool odd) { r.all_reduce(ReduceOp::Sum, std::vector(odd ? 1 : 2, at::ones({}))); }),
      errors::kStructure);
  EXPECT_EQ(ops->taken(), "");
  EXPECT_EQ(strategy.reduce(ReduceOp::Sum, ids)[0].item<float>(), sum);
}

struct Failing : CrossDeviceOps {
  Mirrored<at::Tensor> reduce(ReduceOp, const PerReplica<at::Tensor>&, const Devices&,
                              const CommunicationOptions&) override {
    throw std::domain_error("the cable is cut");
  }
};

struct Careless : CrossDeviceOps {
  Mirrored<at::Tensor> reduce(ReduceOp, const PerReplica<at::Tensor>&, const Devices&,
                              const CommunicationOptions&) override {
    return Mirrored<at::Tensor>(std::vector<at::Tensor>{});
  }
};

TEST(CustomOps, WhatTheyThrowArrivesAsItself) {
  const LoggedLines quiet;
  MirroredStrategy strategy({.devices = test_devices(3), .cross_device_ops = std::make_shared<Failing>()});
  for (int round = 0; round < 10; ++round) {
    EXPECT_THROW(strategy.run([] { get_replica_context().all_reduce(ReduceOp::Sum, at::ones({})); }),
                 std::domain_error);
  }
  EXPECT_EQ(strategy.run(my_id).size(), 3u);
}

TEST(CustomOps, AResultWithoutComponentsIsAnError) {
  MirroredStrategy strategy({.devices = test_devices(2), .cross_device_ops = std::make_shared<Careless>()});
  EXPECT_EQ(
      error_of([&] { strategy.run([] { get_replica_context().all_reduce(ReduceOp::Sum, at::ones({})); }); }).number,
      errors::kComponent);
  Variable v = strategy.make_variable(at::zeros({}), {.aggregation = Aggregation::Sum});
  EXPECT_EQ(error_of([&] { strategy.run([&] { v.assign(at::ones({})); }); }).number, errors::kComponent);
}

// ---------------------------------------------------------------------------------------------------------------------
// Reduction to one device

at::Tensor largest(const std::vector<at::Tensor>& parts) {
  at::Tensor result = parts[0];
  for (const auto& part : parts) result = at::maximum(result, part);
  return result;
}

TEST_P(CustomOpsTest, AnAccumulationFunctionStandsForTheSum) {
  MirroredStrategy maximum({.devices = test_devices(replicas),
                            .cross_device_ops = std::make_shared<ReductionToOneDevice>("cpu:0", largest)});
  const float top = static_cast<float>(replicas - 1);
  EXPECT_EQ(maximum.reduce(ReduceOp::Sum, ids)[0].item<float>(), top);
  EXPECT_EQ(maximum.reduce(ReduceOp::Mean, ids)[0].item<float>(), top / static_cast<float>(replicas));
  for (const auto& result :
       maximum.run([](const at::Tensor& mine) { return get_replica_context().all_reduce(ReduceOp::Sum, mine); }, ids)) {
    EXPECT_EQ(result[0].item<float>(), top);
  }
}

TEST_P(CustomOpsTest, AnAccumulationThatReturnsAnInputDoesNotShareItsMemory) {
  const auto first = [](const std::vector<at::Tensor>& parts) { return parts[0]; };
  MirroredStrategy lazy(
      {.devices = test_devices(replicas), .cross_device_ops = std::make_shared<ReductionToOneDevice>("", first)});
  EXPECT_FALSE(lazy.reduce(ReduceOp::Sum, ids).is_alias_of(ids[0]));
  for (const auto& result :
       lazy.run([](const at::Tensor& mine) { return get_replica_context().all_reduce(ReduceOp::Sum, mine); }, ids)) {
    EXPECT_FALSE(result.is_alias_of(ids[0]));
  }
}

// ---------------------------------------------------------------------------------------------------------------------
// Packs

class PackingTest : public testing::TestWithParam<int> {
 protected:
  /// A batch of values of many sizes and two types.
  static std::vector<StrategyExtended::ReducePair> batch(MirroredStrategy& strategy) {
    std::vector<StrategyExtended::ReducePair> pairs;
    for (const std::int64_t size : {10, 0, 1, 301, 7}) {
      const auto random = [&](auto&& make) {
        return strategy.values_from_function([&](const ValueContext&) { return make(); });
      };
      const auto floats = random([&] { return at::randn({size, 2}); });
      const auto ints = random([&] { return at::randint(-50, 50, {size}, at::kInt); });
      pairs.emplace_back(floats, floats);
      pairs.emplace_back(ints, "cpu:0");
    }
    return pairs;
  }
};

INSTANTIATE_TEST_SUITE_P(Replicas, PackingTest, testing::Values(1, 2, 3, 4, 7));

TEST_P(PackingTest, NoOperationAndNoPackChangesABit) {
  MirroredStrategy plain(on_devices(GetParam()));
  const auto pairs = batch(plain);
  for (const auto op : {ReduceOp::Sum, ReduceOp::Mean}) {
    const auto expected = plain.extended().batch_reduce_to(op, pairs);
    const auto check = [&](MirroredStrategy& strategy, const CommunicationOptions& options, const std::string& what) {
      const auto results = strategy.extended().batch_reduce_to(op, pairs, options);
      ASSERT_EQ(results.size(), expected.size());
      for (std::size_t i = 0; i < results.size(); ++i) {
        ASSERT_EQ(results[i].size(), expected[i].size()) << what;
        for (std::size_t d = 0; d < results[i].size(); ++d) {
          ASSERT_TRUE(same_bits(results[i][d], expected[i][0])) << what << ", value " << i;
          if (d > 0) {
            ASSERT_FALSE(results[i][d].is_alias_of(results[i][0])) << what << ", value " << i;
          }
        }
      }
    };
    for (const std::int64_t bytes : {1, 50, 4096, 1 << 30})
      check(plain, {.bytes_per_pack = bytes}, lockstep::str("packs of ", bytes));
    for (const int packs : {0, 1, 2, 5, 1000}) {  // the last one: more packs than elements
      MirroredStrategy two_groups({.devices = test_devices(GetParam()),
                                   .cross_device_ops = std::make_shared<HierarchicalCopyAllReduce>(packs)});
      check(two_groups, {}, lockstep::str("hierarchical copy, ", packs, " packs"));
    }
    MirroredStrategy one_device(
        {.devices = test_devices(GetParam()), .cross_device_ops = std::make_shared<ReductionToOneDevice>("cpu:0")});
    check(one_device, {.bytes_per_pack = 50}, "one device");
  }
}

TEST_P(PackingTest, AnEmptyBatchIsEmpty) {
  MirroredStrategy plain(on_devices(GetParam()));
  EXPECT_TRUE(plain.extended().batch_reduce_to(ReduceOp::Sum, {}).empty());
}

TEST_P(PackingTest, SparseRowsOfABatchAreReducedOneByOne) {
  MirroredStrategy plain(on_devices(GetParam()));
  auto& extended = plain.extended();
  const auto rows_of = [&](std::int64_t width) {
    return PerReplica<IndexedSlices>::generate(static_cast<std::size_t>(GetParam()), [&](std::size_t k) {
      const auto n = static_cast<std::int64_t>(k);
      return IndexedSlices{at::randn({n, width}), at::full({n}, n, at::kLong), {9, width}};
    });
  };
  const auto narrow = rows_of(2), wide = rows_of(5);
  for (const auto op : {ReduceOp::Sum, ReduceOp::Mean}) {
    const auto results = extended.batch_reduce_to(op, {{narrow, narrow}, {wide, "cpu:0"}});
    ASSERT_EQ(results.size(), 2u);
    EXPECT_EQ(results[0].size(), narrow.size());
    EXPECT_EQ(results[1].size(), 1u);
    const auto alone = extended.reduce_to(op, wide, "cpu:0");
    EXPECT_TRUE(same_bits(results[1][0].values, alone[0].values));
    EXPECT_TRUE(same_bits(results[1][0].indices, alone[0].indices));
    EXPECT_EQ(results[0][0].dense_shape, (std::vector<std::int64_t>{9, 2}));
  }
  EXPECT_TRUE(extended.batch_reduce_to(ReduceOp::Sum, std::vector<StrategyExtended::SparseReducePair>{}).empty());
  const SeenError seen = error_of([&] {
    plain.run([&] { extended.batch_reduce_to(ReduceOp::Sum, {{narrow, narrow}}); });
  });
  EXPECT_EQ(seen.number, errors::kWrongContext) << seen.text;
}

TEST(Nccl, OnCpusGivesTheOrderedSumAndWarnsOnce) {
  const LoggedLines log;
  MirroredStrategy plain(on_cpus(3));
  MirroredStrategy nccl({.devices = cpus(3), .cross_device_ops = std::make_shared<NcclAllReduce>(2)});
  for (int round = 0; round < 3; ++round) {
    const auto values = plain.values_from_function([](const ValueContext&) { return at::randn({1000}, at::kCPU); });
    EXPECT_TRUE(same_bits(nccl.reduce(ReduceOp::Sum, values), plain.reduce(ReduceOp::Sum, values)));
    nccl.run([&](const at::Tensor& mine) { get_replica_context().all_reduce(ReduceOp::Sum, mine); }, values);
  }
  EXPECT_EQ(log.count("NcclAllReduce needs GPUs"), 1);
}

// ---------------------------------------------------------------------------------------------------------------------
// Destinations

TEST(DestinationsOf, AReductionGetACopyEach) {
  MirroredStrategy strategy(on_devices(3));
  auto& extended = strategy.extended();
  const auto ones = strategy.values_from_function([](const ValueContext&) { return at::ones({2}); });
  const Variable v = strategy.make_variable(at::zeros({5}));
  EXPECT_EQ(extended.reduce_to(ReduceOp::Sum, ones, "cpu:2").size(), 1u);
  EXPECT_EQ(extended.reduce_to(ReduceOp::Sum, ones, at::ones({})).size(), 1u);
  for (const auto& mirrored :
       {extended.reduce_to(ReduceOp::Sum, ones, ones), extended.reduce_to(ReduceOp::Sum, ones, v)}) {
    ASSERT_EQ(mirrored.size(), 3u);
    EXPECT_FALSE(mirrored[0].is_alias_of(mirrored[1]));
    EXPECT_EQ(mirrored[2][0].item<float>(), 3);
  }
  EXPECT_EQ(v.read().sum().item<float>(), 0) << "a destination is not changed";
  const at::Tensor source = at::ones({2});
  for (const auto& copy : extended.broadcast_to(source, v)) EXPECT_FALSE(copy.is_alias_of(source));
}

}  // namespace
}  // namespace lockstep
