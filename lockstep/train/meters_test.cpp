#include "lockstep/train/meters.h"

#include <ATen/ops/full.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/zeros.h>
#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <vector>

#include "lockstep/strategy/mirrored_strategy.h"
#include "lockstep/train/metrics.h"
#include "tests/support/expect_error.h"
#include "tests/support/replicas.h"

namespace lockstep::train {
namespace {

/// Replica k adds k + 1 rows with the value k.
void add_uneven(Strategy& strategy, Meters& meters) {
  strategy.run([&] { meters.add_mean("loss", at::full({my_id() + 1}, my_id(), at::kFloat)); });
}

TEST(Meters, AMeanCountsRowsNotReplicas) {
  MirroredStrategy strategy(on_cpus(3));
  Meters meters(strategy);
  EXPECT_EQ(meters.values(), Logs());
  add_uneven(strategy, meters);
  EXPECT_DOUBLE_EQ(meters.values().at("loss"), (0 * 1 + 1 * 2 + 2 * 3) / 6.0);
  EXPECT_EQ(meters.values_here(), meters.values());
  EXPECT_EQ(meters.sums().at("loss"), (std::vector<double>{8, 6}));
  meters.reset();
  add_uneven(strategy, meters);
  EXPECT_EQ(meters.sums().at("loss"), (std::vector<double>{8, 6})) << "sums are those of the last values()";
  EXPECT_DOUBLE_EQ(meters.values().at("loss"), 8.0 / 6);
}

TEST(Meters, WhatHasNoRowsIsLeftOut) {
  MirroredStrategy strategy(on_cpus(2));
  Meters meters(strategy, {metrics::mse()});
  strategy.run([&] {
    meters.add(at::zeros({2}), at::zeros({2}));
    meters.add_mean("loss", at::full({1}, 3.0));
    meters.add_mean("norm", at::full({1}, 4.0));
  });
  EXPECT_EQ(meters.values(), (Logs{{"loss", 3}, {"mse", 0}, {"norm", 4}}));
  meters.reset();
  strategy.run([&] { meters.add_mean("loss", at::full({my_id()}, 5.0)); });
  EXPECT_EQ(meters.values(), (Logs{{"loss", 5}}));
}

TEST(Meters, NamesMustBeTheSameOnAllReplicas) {
  MirroredStrategy strategy(on_cpus(2));
  Meters meters(strategy);
  strategy.run([&] { meters.add_mean(my_id() == 0 ? "loss" : "lost", at::zeros({1})); });
  expect_error([&] { meters.values(); }, Code::InvalidArgument, errors::kStructure, {"replica 1", "lost", "loss"});
}

TEST(Meters, NamesMustDiffer) {
  MirroredStrategy strategy(on_cpus(1));
  expect_error(
      [&] {
        Meters(strategy, {metrics::mse(), metrics::mse()});
      },
      Code::InvalidArgument, errors::kBadOption, {"two metrics have the name \"mse\""});
  expect_error([&] { Meters(strategy, {nullptr}); }, Code::InvalidArgument, errors::kBadOption, {"null"});
  Meters meters(strategy, {metrics::mse("loss")});
  expect_error([&] { strategy.run([&] { meters.add_mean("loss", at::zeros({1})); }); }, Code::InvalidArgument,
               errors::kBadOption, {"\"loss\""});
}

TEST(Meters, ContinueFromASnapshotOnAnyNumberOfReplicas) {
  MirroredStrategy three(on_cpus(3));
  Meters before(three, {metrics::mse()});
  const auto add = [](Strategy& strategy, Meters& meters) {
    strategy.run([&] { meters.add(at::full({2}, my_id(), at::kFloat), at::zeros({2})); });
    add_uneven(strategy, meters);
  };
  add(three, before);
  Snapshot snapshot;
  before.capture(snapshot, "meters");
  EXPECT_EQ(snapshot.by_replica.at("meters/mse").size(), 3u);
  const Logs expected = before.values();
  add(three, before);  // the snapshot does not change
  for (const int replicas : {1, 2, 3, 5}) {
    MirroredStrategy strategy(on_cpus(replicas));
    Meters after(strategy, {metrics::mse()});
    after.restore(snapshot, "meters");
    EXPECT_EQ(after.values(), expected) << replicas;
    strategy.run([&] { after.add_mean("loss", at::zeros({0})); });
    EXPECT_EQ(after.values(), expected) << replicas;
  }
}

/// The median of the outputs, which no sums give.
struct Median final : GatheredMetric {
  explicit Median(std::int64_t columns = 1) : GatheredMetric("median", columns) {}
  at::Tensor keep(const at::Tensor& output, const at::Tensor&) const override {
    return output.reshape({-1, 1}).clone();
  }
  double value_of(const at::Tensor& examples) const override { return examples.median().item<double>(); }
};

TEST(Meters, GatherAllExamplesWhereAMetricNeedsThem) {
  MirroredStrategy strategy(on_cpus(3));
  Meters meters(strategy, {std::make_shared<Median>()});
  EXPECT_TRUE(meters.values().empty());
  const auto add = [&](const std::vector<float>& numbers) {
    strategy.run([&] {
      const at::Tensor mine = at::tensor(numbers).tensor_split(3)[static_cast<std::size_t>(my_id())];
      meters.add(mine, mine);
    });
  };
  add({5, 1, 100, 2});
  add({3});
  EXPECT_EQ(meters.values(), (Logs{{"median", 3}}));
  EXPECT_EQ(meters.values(), (Logs{{"median", 3}})) << "reading changes nothing";
  EXPECT_TRUE(meters.values_here().empty());
  meters.reset();
  EXPECT_TRUE(meters.values().empty());
  add({7, 8});
  EXPECT_EQ(meters.values().at("median"), 7);
}

TEST(Meters, ThatGatherContinueFromASnapshotOnAnyNumberOfReplicas) {
  MirroredStrategy two(on_cpus(2));
  Meters before(two, {std::make_shared<Median>()});
  two.run([&] {
    const at::Tensor mine = at::tensor(my_id() == 0 ? std::vector<float>{9, 1} : std::vector<float>{4});
    before.add(mine, mine);
  });
  Snapshot snapshot;
  before.capture(snapshot, "meters");
  for (const int replicas : {1, 2, 3}) {
    MirroredStrategy strategy(on_cpus(replicas));
    Meters after(strategy, {std::make_shared<Median>()});
    after.restore(snapshot, "meters");
    EXPECT_EQ(after.values().at("median"), 4) << replicas;
    strategy.run([&] { after.add(at::tensor({8.F, 8.F}), at::Tensor()); });
    EXPECT_EQ(after.values().at("median"), 8) << replicas;
  }
  Meters of_sums(two, {metrics::custom("median", [](const at::Tensor& output, const at::Tensor&) { return output; })});
  expect_error([&] { of_sums.restore(snapshot, "meters"); }, Code::InvalidArgument, errors::kSavedState,
               {"metric \"median\" is one of sums, and that of the snapshot is not"});
  Meters wide(two, {std::make_shared<Median>(2)});
  expect_error([&] { wide.restore(snapshot, "meters"); }, Code::InvalidArgument, errors::kSavedState,
               {"metric \"median\" is one of all examples"});
  expect_error([&] { two.run([&] { wide.add(at::ones({3}), at::Tensor()); }); }, Code::InvalidArgument,
               errors::kStructure, {"keeps 2 numbers of each example, got a tensor [3, 1]"});
}

TEST(Meters, OfOtherMetricsAreNotRestored) {
  MirroredStrategy strategy(on_cpus(1));
  Meters before(strategy, {metrics::auc({.thresholds = 20})}), after(strategy, {metrics::auc()});
  strategy.run([&] { before.add(at::zeros({2}), at::zeros({2})); });
  Snapshot snapshot;
  before.capture(snapshot, "meters");
  expect_error([&] { after.restore(snapshot, "meters"); }, Code::InvalidArgument, errors::kSavedState,
               {"\"auc\"", "399 sums", "39"});
  EXPECT_EQ(after.values(), Logs());
}

}  // namespace
}  // namespace lockstep::train
