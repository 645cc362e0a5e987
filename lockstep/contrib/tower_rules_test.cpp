// The arguments that towers' calls accept, and where results go, in tables.

#include <ATen/ops/full.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/tensor.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "lockstep/contrib.h"
#include "lockstep/lockstep.h"
#include "tests/support/errors.h"
#include "tests/support/expect_error.h"
#include "tests/support/logged_lines.h"
#include "tests/support/towers.h"

namespace lockstep::contrib {
namespace {

using TowerDestinationsOf = TwoTowers;

TEST_F(TowerDestinationsOf, ReduceBatchReduceAndBroadcastAreTheSame) {
  const auto scope = strategy.scope();
  const Variable v(one(), {.name = "v"});
  const auto local = strategy.tower_local_variable(one(), Agg::SUM, "local");
  const struct {
    const char* name;
    TowerDestinations destinations;
    std::size_t components;
  } cases[] = {{"a device", "cpu:1", 1},
               {"its full name", strategy.worker_devices()[1], 1},
               {"TensorFlow's name", "/device:CPU:0", 1},
               {"a list", std::vector<std::string>{"cpu:1", "cpu:0"}, 2},
               {"a list with a device twice", std::vector<std::string>{"cpu:1", "cpu:0", "cpu:1"}, 2},
               {"the value itself", ids, 2},
               {"a mirrored value", strategy.broadcast(one()), 2},
               {"a variable", v, 2},
               {"a tower-local variable", local, 2},
               {"two devices in braces", {"cpu:0", "cpu:1"}, 2},
               {"an output of a step", TowerValue(ids), 2},
               {"a plain output of a step", TowerValue(one()), 1},
               {"a tensor", one(), 1},
               {"None", {}, 2}};
  for (const auto& [name, destinations, components] : cases) {
    SCOPED_TRACE(name);
    for (const auto& result : {strategy.reduce(Agg::SUM, ids, destinations), strategy.broadcast(one(), destinations),
                               strategy.batch_reduce(Agg::SUM, {{0, "cpu:0"}, {ids, destinations}})[1]}) {
      EXPECT_EQ(result.size(), components);
      for (const at::Tensor& component : result) EXPECT_EQ(component.item<double>(), 1);
    }
  }
  EXPECT_TRUE(strategy.batch_reduce(Agg::SUM, {}).empty());
  // These were once parsed as one string between two pointers.
  EXPECT_EQ(strategy.reduce(Agg::SUM, ids, {"cpu:0", "cpu:1"}).size(), 2U);
  EXPECT_EQ(strategy.broadcast(one(), {"cpu:1", "cpu:0", "cpu:1"}).size(), 2U);
  EXPECT_EQ(strategy.broadcast(2.5)[1].item<double>(), 2.5);
  EXPECT_EQ(strategy.reduce(Agg::SUM, local, "cpu:0").item<double>(), 2);
}

/// Counts the batches passed to it.
struct CountingOps final : OrderedCrossDeviceOps {
  std::vector<Mirrored<at::Tensor>> batch_reduce(ReduceOp op, const std::vector<Job>& jobs,
                                                 const CommunicationOptions& options) override {
    sizes.push_back(jobs.size());
    return OrderedCrossDeviceOps::batch_reduce(op, jobs, options);
  }
  std::vector<std::size_t> sizes;
};

TEST(ContribBatches, ReachCrossTowerOpsAsOneBatch) {
  const auto ops = std::make_shared<CountingOps>();
  MirroredStrategy strategy({.devices = cpus(2), .cross_tower_ops = ops});
  const auto ids = strategy.call_for_each_tower([] { return get_tower_context().tower_id(); });
  const auto tens = strategy.call_for_each_tower([] { return at::full({3}, 10.0); });
  const auto means = strategy.batch_reduce(Agg::MEAN, {{ids, "cpu:0"}, {7, "cpu:1"}, {tens, tens}});
  EXPECT_EQ(ops->sizes, std::vector<std::size_t>{2});
  EXPECT_EQ(means[0][0].item<double>(), 0.5);
  EXPECT_EQ(means[1][0].item<double>(), 7);
  ASSERT_EQ(means[2].size(), 2U);
  EXPECT_TRUE(means[2][1].equal(at::full({3}, 10.0)));
  EXPECT_EQ(strategy.batch_reduce(Agg::ONLY_FIRST_TOWER, {{ids, "cpu:0"}})[0][0].item<double>(), 0);
}

TEST_F(TwoTowers, TakeAVariableOutsideOfAllScopesForAPlainValue) {
  const Variable plain(one(), {.name = "plain"});
  EXPECT_EQ(strategy.reduce(Agg::MEAN, plain, "cpu:0").item<double>(), 1);
  EXPECT_EQ(strategy.unwrap(plain).size(), 1U);
  int calls = 0;
  strategy.update(plain, [&](at::Tensor v) { calls += v.add_(1).item<int>(); });
  EXPECT_EQ(calls, 2);
}

TEST_F(TwoTowers, ReduceSparseRows) {
  const auto rows = strategy.call_for_each_tower([] {
    const int tower = get_tower_context().tower_id();
    return IndexedSlices{at::full({1 + tower, 1}, 2.0 + tower), at::full({1 + tower}, tower, at::kLong), {5, 1}};
  });
  const IndexedSlices sum = strategy.reduce(Agg::SUM, rows, "cpu:0");
  EXPECT_TRUE(sum.indices.equal(at::tensor({0, 1, 1})));
  EXPECT_TRUE(sum.values.flatten().equal(at::tensor({2.0f, 3.0f, 3.0f})));
  EXPECT_EQ(sum.dense_shape, (std::vector<std::int64_t>{5, 1}));
  EXPECT_EQ(strategy.reduce(Agg::MEAN, rows, {"cpu:0", "cpu:1"})[1].values[0].item<double>(), 1);
  EXPECT_EQ(strategy.reduce(Agg::ONLY_FIRST_TOWER, rows).size(), 2U);
  const auto batch = strategy.batch_reduce(Agg::ONLY_FIRST_TOWER, {{rows, "cpu:0"}, {rows, rows}});
  EXPECT_EQ(batch[1][1].indices.numel(), 1);
}

TEST_F(TwoTowers, ReduceResultsOfMapOfAnyKindToAnyPlace) {
  const std::vector<int> items{1, 2, 3};
  const auto doubles = strategy.map(items, [](int x) { return 0.5 * x; });
  EXPECT_EQ(strategy.reduce(Agg::SUM, doubles, "cpu:0").item<double>(), 3);
  EXPECT_EQ(strategy.reduce(Agg::MEAN, doubles, {"cpu:0", "cpu:1"})[1].item<double>(), 1);
  EXPECT_EQ(strategy.reduce(Agg::ONLY_FIRST_TOWER, doubles).size(), 2U);
  const auto tensors = strategy.map(items, [](int x) { return at::full({2}, x); });
  EXPECT_TRUE(strategy.batch_reduce(Agg::SUM, {{tensors, "cpu:1"}, {ids, ids}})[0][0].equal(at::full({2}, 6)));
}

TEST_F(TwoTowers, GetTheComponentsOfADevice) {
  const Mirrored<int> numbers({10, 11});
  const auto same = [](int x) { return x; };
  const auto swapped = strategy.update_non_slot({"cpu:1", "cpu:0"}, same, numbers);
  EXPECT_EQ(swapped[0], 11);
  EXPECT_EQ(strategy.unwrap(swapped), (std::vector<int>{10, 11}));
  EXPECT_EQ(strategy.unwrap(strategy.call_for_each_tower(same, swapped)), (std::vector<int>{10, 11}));
  EXPECT_EQ(strategy
                .unwrap(strategy.map(
                    std::vector<int>{0, 0}, [](int, int x) { return x; }, swapped))[1]
                .get()[0],
            11);
  EXPECT_EQ(strategy.update_non_slot({"cpu:1"}, same, swapped, ungrouped), std::vector<int>{11});
}

TEST_F(TwoTowers, TakeOutputsOfStepsBack) {
  auto iterator = strategy.distribute_dataset([] { return data::range(8); }).make_one_shot_iterator();
  const auto first = strategy.run_steps_on_dataset(
      [](MultiStepContext& ctx, const PerDevice<at::Tensor>& x) { ctx.set_last_step_output("x", x); }, iterator);
  const TowerValue x = first.last_step_outputs()["x"];
  EXPECT_EQ(error_of([&] { (void)first.last_step_outputs()["y"]; }).number, errors::kStructure);
  EXPECT_EQ(strategy.reduce(Agg::SUM, x, "cpu:0").item<int>(), 1);
  EXPECT_EQ(strategy.unwrap(x).size(), 2U);
  const auto seen = strategy.call_for_each_tower([](const TowerValue& mine) { return mine.tensor().item<int>(); }, x);
  EXPECT_EQ(strategy.unwrap(seen), (std::vector<int>{0, 1}));
  const auto again = strategy.run_steps_on_dataset(
      [&](MultiStepContext& ctx, const PerDevice<at::Tensor>&) { ctx.set_last_step_output("x", x); }, iterator);
  EXPECT_EQ(again.last_step_outputs().at("x").values()[1].item<int>(), 1);
}

TEST_F(TwoTowers, TakeOutputsOfStepsByTheirDevices) {
  const auto output = [&](const Mirrored<at::Tensor>& value) {
    auto iterator = strategy.distribute_dataset([] { return data::range(8); }).make_one_shot_iterator();
    const auto context = strategy.run_steps_on_dataset(
        [&](MultiStepContext& ctx, const PerDevice<at::Tensor>&) { ctx.set_last_step_output("x", value); }, iterator);
    return context.last_step_outputs().at("x");
  };
  const auto number = [](const TowerValue& mine) { return mine.tensor().item<int>(); };
  const auto of_item = [&](int, const TowerValue& mine) { return number(mine); };
  const Mirrored<at::Tensor> numbers({at::full({}, 10), at::full({}, 11)});
  const auto same = [](const at::Tensor& x) { return x; };
  const TowerValue swapped = output(strategy.update_non_slot({"cpu:1", "cpu:0"}, same, numbers));
  EXPECT_EQ(strategy.unwrap(strategy.call_for_each_tower(number, swapped)), (std::vector<int>{10, 11}));
  const auto in_pair = [&](const std::pair<TowerValue, int>& mine) { return number(mine.first); };
  EXPECT_EQ(strategy.unwrap(strategy.call_for_each_tower(in_pair, std::pair(swapped, 0))), (std::vector<int>{10, 11}));
  EXPECT_EQ(strategy.unwrap(strategy.map(std::vector<int>{0, 0}, of_item, swapped))[1].get()[0], 11);
  EXPECT_EQ(strategy.update_non_slot({"cpu:1"}, number, swapped, ungrouped), std::vector<int>{11});

  const TowerValue second = output(strategy.update_non_slot({"cpu:1"}, same, numbers));
  for (const auto& call :
       std::vector<std::function<void()>>{[&] { strategy.call_for_each_tower(number, second); },
                                          [&] {
                                            strategy.map(std::vector<int>{0, 0}, of_item, second);
                                          },
                                          [&] { strategy.update_non_slot({"cpu:0"}, number, second); }})
    EXPECT_NE(error_of(call).text.find("has no component on"), std::string::npos) << error_of(call).text;
}

TEST_F(TwoTowers, MakeVariablesOfTheirOwnTogether) {
  std::optional<TowerLocalVariable> local;
  strategy.call_for_each_tower([&] {
    const auto made = strategy.tower_local_variable(one(), Agg::SUM, "inside");
    if (get_tower_context().tower_id() == 0) local = made;
  });
  strategy.call_for_each_tower([&] { local->assign_add(1.0 + get_tower_context().tower_id()); });
  EXPECT_EQ(strategy.read_var(*local).item<double>(), 5);
  EXPECT_EQ((*local + 1).item<double>(), 6);
  EXPECT_EQ((2 * *local).item<double>(), 10);
}

TEST_F(TwoTowers, ReadAVariableWithoutAggregationAsASum) {
  const auto scope = strategy.scope();
  const Variable v(at::full({}, 1.5), {.name = "v", .synchronization = Synchronization::OnRead});
  EXPECT_EQ(strategy.read_var(v).item<double>(), 3);
}

TEST_F(TwoTowers, UnwrapValuesOfAnyType) {
  struct Named {
    explicit Named(int of) : tower(of) {}
    int tower;
  };
  const auto named =
      strategy.unwrap(strategy.call_for_each_tower([] { return Named(get_tower_context().tower_id()); }));
  EXPECT_EQ(named.at(1).tower, 1);
  const std::vector<std::string> texts = strategy.unwrap(strategy.call_for_each_tower([] { return "literal"; }));
  EXPECT_EQ(texts.at(1), "literal");
  EXPECT_EQ(strategy.unwrap(strategy.map(std::vector<int>{5}, [](int x) { return Named(x); })).at(0).get().at(0).tower,
            5);
}

TEST_F(TwoTowers, GiveCopiesOfVariables) {
  const auto scope = strategy.scope();
  Variable v(one(), {.name = "v"});
  const auto before = strategy.read_var(v);
  const auto add = [](at::Tensor component) { return component.add_(1); };
  const auto updated = strategy.update(v, add);
  const auto listed = strategy.update(v, add, ungrouped);
  v.assign(9);
  EXPECT_EQ(before.item<double>(), 1);
  EXPECT_EQ(updated[1].item<double>(), 2);
  EXPECT_EQ(listed[1].item<double>(), 3);
}

TEST(WithoutConfigure, WorkersOfTFConfigAreWarnedOfOnce) {
  const struct Cluster {
    Cluster() {
      ::setenv("TF_CONFIG", R"({"cluster": {"worker": ["h:1", "h:2"]}, "task": {"type": "worker", "index": 0}})", 1);
    }
    ~Cluster() { ::unsetenv("TF_CONFIG"); }
  } cluster;
  LoggedLines log;
  MirroredStrategy strategy({.devices = cpus(2)});
  for (int i = 0; i < 2; ++i) strategy.call_for_each_tower([] { return one(); });
  EXPECT_EQ(log.count("TF_CONFIG names 2 workers, but this one trains alone: no cluster was given to configure"), 1);
}

TEST(LogicalCpus, AreTheTowersWhereThereIsNoGpu) {
  const struct Restored {
    ~Restored() { set_logical_cpus(1); }
  } restored;
  set_logical_cpus(3);
  EXPECT_EQ(MirroredStrategy({.num_gpus = 0}).num_towers(), 3);
  EXPECT_EQ(MirroredStrategy({.devices = cpus(2)}).num_towers(), 2);
  EXPECT_EQ(CollectiveAllReduceStrategy().num_towers(), 3);
  const ClusterSpec alone{{"worker", {"127.0.0.1:1"}}};
  MirroredStrategy strategy({.num_gpus = 0});
  strategy.configure({.cluster_spec = alone, .task_type = "worker", .task_id = 0});
  EXPECT_EQ(strategy.num_towers(), 3);
  strategy.configure({.cluster_spec = alone, .task_type = "worker", .task_id = 0, .devices = cpus(2)});
  EXPECT_EQ(strategy.num_towers(), 2);
}

}  // namespace
}  // namespace lockstep::contrib
