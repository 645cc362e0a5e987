// The names of TensorFlow 1.11's contrib.distribute, one by one.

#include "lockstep/contrib.h"

#include <ATen/ops/full.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/zeros.h>
#include <gtest/gtest.h>

#include <functional>
#include <mutex>
#include <string>
#include <type_traits>
#include <vector>

#include "lockstep/lockstep.h"
#include "tests/support/errors.h"
#include "tests/support/expect_error.h"
#include "tests/support/towers.h"

namespace lockstep::contrib {
namespace {

class Towers : public testing::TestWithParam<int> {
 protected:
  int n = GetParam();
  MirroredStrategy& strategy = towers(n);
};
INSTANTIATE_TEST_SUITE_P(Numbers, Towers, testing::Values(1, 2, 3));

// names: MirroredStrategy.__init__, MirroredStrategy, DistributionStrategy
TEST(ContribConstructor, FollowsTheRulesOfItsArguments) {
  const auto refused = [](const MirroredOptions& options, const std::string& fragment) {
    expect_error([&] { MirroredStrategy strategy(options); }, Code::InvalidArgument, errors::kBadOption, {fragment});
  };
  refused({.num_gpus = 1, .num_gpus_per_worker = 1}, "cannot specify both");
  refused({.devices = cpus(1), .num_gpus = 0}, "Must only specify one of");
  refused({.devices = cpus(1), .num_gpus_per_worker = 0}, "Must only specify one of");
  refused({.num_gpus = -1}, "must be >= 0, got -1");
  EXPECT_THROW(MirroredStrategy({.devices = std::vector<std::string>{}}), InvalidArgument);
  EXPECT_THROW(MirroredStrategy({.devices = std::vector<std::string>{"cpu:0", "cpu:0"}}), InvalidArgument);
  const Devices cpu{"/job:localhost/replica:0/task:0/device:CPU:0"};
  EXPECT_EQ(MirroredStrategy({.num_gpus = 0}).worker_devices(), cpu);
  EXPECT_EQ(MirroredStrategy({.num_gpus_per_worker = 0}).worker_devices(), cpu);
  if (visible_gpus() == 0) {
    EXPECT_EQ(MirroredStrategy().worker_devices(), cpu);
  }
  static_assert(std::is_base_of_v<DistributionStrategy, MirroredStrategy>);
}

// names: num_towers, is_single_tower, between_graph, should_init, should_checkpoint, should_save_summary, parameter_devices,
// names: worker_devices, non_slot_devices, initialize, finalize, group, scope
TEST_P(Towers, SayWhatTheyAre) {
  EXPECT_EQ(strategy.num_towers(), n);
  EXPECT_EQ(strategy.is_single_tower(), n == 1);
  EXPECT_FALSE(strategy.between_graph());
  EXPECT_TRUE(strategy.should_init() && strategy.should_checkpoint() && strategy.should_save_summary());
  EXPECT_EQ(strategy.worker_devices().size(), static_cast<std::size_t>(n));
  EXPECT_EQ(strategy.parameter_devices(), strategy.worker_devices());
  EXPECT_EQ(strategy.non_slot_devices({}), strategy.worker_devices());
  strategy.initialize();
  strategy.finalize();
  strategy.group(ids(strategy), 3);
  const auto scope = strategy.scope();
  EXPECT_TRUE(in_cross_tower_context());
  EXPECT_EQ(&get_distribution_strategy(), &strategy);
}

// names: call_for_each_tower, worker_device_index, unwrap, get_tower_context, TowerContext, tower_id
TEST_P(Towers, AreCalledWithTheirOwnComponents) {
  const auto each = strategy.call_for_each_tower(
      [&](int index, int plain) {
        const TowerContext tower = get_tower_context();
        EXPECT_EQ(tower.tower_id(), index);
        EXPECT_EQ(tower.num_towers(), n);
        EXPECT_EQ(tower.is_single_tower(), n == 1);
        EXPECT_EQ(tower.device(), strategy.worker_devices()[static_cast<std::size_t>(index)]);
        EXPECT_EQ(&tower.distribution_strategy(), &strategy);
        EXPECT_FALSE(in_cross_tower_context());
        return 10 * index + plain;
      },
      strategy.worker_device_index(), 7);
  std::vector<int> expected;
  for (int k = 0; k < n; ++k) expected.push_back(10 * k + 7);
  EXPECT_EQ(strategy.unwrap(each), expected);
  EXPECT_EQ(strategy.unwrap(5), std::vector<int>{5});
  EXPECT_EQ(strategy.get(each, strategy.worker_devices().back()), expected.back());
  EXPECT_EQ(strategy.get(each, "/device:CPU:0"), 7);
  expect_error([&] { strategy.get(each, "cpu:9"); }, Code::InvalidArgument, errors::kDevice, {"not found in"});
  if (n == 1) {
    const int only = strategy.worker_device_index();
    EXPECT_EQ(only, 0);
  }
}

// names: merge_call
TEST_P(Towers, MergeOnceForAll) {
  int calls = 0;
  const auto merged = strategy.call_for_each_tower([&] {
    const auto merge = [&](DistributionStrategy& s, const PerDevice<int>& all) {
      ++calls;
      int sum = 0;
      for (const int one : s.unwrap(all)) sum += one;
      return sum;
    };
    const int mine = 3 + get_tower_context().tower_id();
    return get_tower_context().merge_call(merge, mine) + mine;
  });
  EXPECT_EQ(calls, 1);
  const std::vector<std::vector<int>> expected{{}, {6}, {10, 11}, {15, 16, 17}};
  EXPECT_EQ(strategy.unwrap(merged), expected[static_cast<std::size_t>(n)]);
}

// names: run_concurrently
TEST_P(Towers, WorkInTurnUpToTheirMergePointsWhenAsked) {
  std::string order;
  strategy.call_for_each_tower(
      [&](int) {
        order += std::to_string(get_tower_context().tower_id());
        get_tower_context().merge_call([&](DistributionStrategy&) { order += "m"; });
        order += std::to_string(get_tower_context().tower_id());
      },
      1, run_in_turn);
  EXPECT_EQ(order, (std::vector<std::string>{"", "0m0", "01m01", "012m012"})[static_cast<std::size_t>(n)]);
  EXPECT_EQ(strategy.unwrap(strategy.call_for_each_tower([] { return 1; }, run_concurrently)),
            std::vector<int>(static_cast<std::size_t>(n), 1));
}

TEST(ContribErrors, SpeakOfTowers) {
  auto& strategy = towers(2);
  expect_error(
      [&] {
        strategy.call_for_each_tower([&] {
          if (get_tower_context().tower_id() == 0) get_tower_context().merge_call([](DistributionStrategy&) {});
        });
      },
      Code::FailedPrecondition, errors::kUnequalMeetings, {"Some towers made a different number of"});
  expect_error([&] { strategy.call_for_each_tower([&] { strategy.call_for_each_tower([] {}); }); },
               Code::FailedPrecondition, errors::kWrongContext,
               {"Method requires being in cross-tower context", "get_tower_context().merge_call()"});
  expect_error(
      [&] {
        const auto scope = strategy.scope();
        get_tower_context();
      },
      Code::FailedPrecondition, errors::kWrongContext, {"outside of towers"});
  expect_error([&] { get_distribution_strategy(); }, Code::FailedPrecondition, errors::kWrongContext, {"contrib"});
  EXPECT_THROW(strategy.call_for_each_tower([] { throw std::logic_error("x"); }), std::logic_error);
}

// names: reduce, VariableAggregation
TEST_P(Towers, Reduce) {
  const auto value = ids(strategy);
  EXPECT_EQ(value_of(strategy.reduce(Agg::SUM, value, "/device:CPU:0")), n * (n - 1) / 2.0);
  EXPECT_EQ(value_of(strategy.reduce(Agg::MEAN, value, "cpu:0")), (n - 1) / 2.0);
  EXPECT_EQ(value_of(strategy.reduce(Agg::ONLY_FIRST_TOWER, value, "cpu:0")), 0);
  const auto same = strategy.reduce(Agg::SUM, value, value);
  EXPECT_EQ(same.size(), static_cast<std::size_t>(n));
  EXPECT_EQ(strategy.reduce(Agg::SUM, value).size(), static_cast<std::size_t>(n));
  EXPECT_EQ(strategy.reduce(Agg::SUM, value, std::vector<std::string>{"cpu:0"}).size(), 1U);
  EXPECT_EQ(strategy.reduce(Agg::SUM, value, std::vector<std::string>{"cpu:0", "/device:CPU:0"}).size(), 1U);
  for (const std::vector<std::string>& nowhere : {std::vector<std::string>{}, {""}, {"cpu:0", ""}})
    expect_error([&] { strategy.reduce(Agg::SUM, value, nowhere); }, Code::InvalidArgument, errors::kDestination,
                 {"destinations can not be empty"});
  EXPECT_THROW(strategy.reduce(Agg::SUM, value, ""), InvalidArgument);
  EXPECT_EQ(value_of(strategy.reduce(Agg::SUM, 0, "cpu:0")), 0);
  EXPECT_EQ(value_of(strategy.reduce(Agg::MEAN, 3, "cpu:0")), 3);
  EXPECT_EQ(value_of(strategy.reduce(Agg::ONLY_FIRST_TOWER, 3.0, "cpu:0")), 3);
  expect_error([&] { strategy.reduce(Agg::MEAN, same, "cpu:0"); }, Code::InvalidArgument, errors::kNotReducible,
               {"Mirrored"});
  expect_error([&] { strategy.reduce(Agg::NONE, value, "cpu:0"); }, Code::InvalidArgument, errors::kNotReducible,
               {"got NONE"});
  if (n > 1) {
    expect_error([&] { strategy.reduce(Agg::SUM, 3, "cpu:0"); }, Code::InvalidArgument, errors::kNotReducible,
                 {"cannot be reduced", "towers"});
  }
  EXPECT_EQ(static_cast<int>(static_cast<Aggregation>(VariableAggregation::ONLY_FIRST_TOWER)), 3);
}

// names: batch_reduce, broadcast, PerDevice
TEST_P(Towers, ReduceInBatchesAndBroadcast) {
  const auto value = ids(strategy);
  const auto results = strategy.batch_reduce(Agg::SUM, {{value, value}, {value, "cpu:0"}});
  ASSERT_EQ(results.size(), 2U);
  EXPECT_EQ(strategy.unwrap(results[0]).size(), static_cast<std::size_t>(n));
  EXPECT_EQ(value_of(results[1][0]), n * (n - 1) / 2.0);
  EXPECT_EQ(values_of(strategy.unwrap(strategy.broadcast(number(2)))), Doubles(static_cast<std::size_t>(n), 2));
  EXPECT_EQ(strategy.broadcast(number(2), "cpu:0").size(), 1U);
  static_assert(std::is_same_v<PerDevice<int>, PerReplica<int>>);
}

// names: map, MapOutput
TEST_P(Towers, MapItemsInTurn) {
  std::vector<at::Tensor> items;
  for (int i = 0; i < 10; ++i) items.push_back(number(i));
  const auto times = [](const at::Tensor& x, const at::Tensor& y) { return x.mul(y); };
  const auto products = strategy.map(items, times, strategy.broadcast(number(2)));
  EXPECT_EQ(value_of(strategy.reduce(Agg::SUM, products, "/device:CPU:0")), 90);
  EXPECT_EQ(value_of(strategy.reduce(Agg::MEAN, products, "/device:CPU:0")), 9);
  EXPECT_EQ(value_of(strategy.reduce(Agg::ONLY_FIRST_TOWER, products, "/device:CPU:0")), 0);
  const std::vector<MapOutput<at::Tensor>> lists = strategy.unwrap(products);
  ASSERT_EQ(lists.size(), static_cast<std::size_t>(n));
  EXPECT_EQ(value_of(lists.back().get()[0]), 2.0 * (n - 1));
  const auto one = strategy.map(std::vector<int>{4}, [](int x) { return x; });
  EXPECT_EQ(strategy.unwrap(one).size(), 1U);  // devices without items are absent
  expect_error([&] { strategy.map(items, times, ids(strategy)); }, Code::InvalidArgument, errors::kComponent,
               {"Expected value to be mirrored across towers"});
}

// names: update, read_var, value_container
TEST_P(Towers, UpdateVariables) {
  const auto scope = strategy.scope();
  const Variable v(number(1), {.name = "v"});
  const auto add = [](at::Tensor component, const at::Tensor& x) { return component.add_(x); };
  EXPECT_EQ(values_of(strategy.unwrap(strategy.update(v, add, number(2)))), Doubles(static_cast<std::size_t>(n), 3));
  strategy.update(v, add, strategy.broadcast(number(1)));
  EXPECT_EQ(value_of(strategy.read_var(v)), 4);
  EXPECT_EQ(strategy.update(v, add, number(0), ungrouped).size(), static_cast<std::size_t>(n));
  strategy.update(v, [](at::Tensor component) { component.mul_(2); });
  EXPECT_EQ(values_of(strategy.unwrap(v)), Doubles(static_cast<std::size_t>(n), 8));
  EXPECT_TRUE(strategy.value_container(v.values().back())->is_same(v));
  EXPECT_FALSE(strategy.value_container(number(1)));
  expect_error([&] { strategy.update(v, add, ids(strategy)); }, Code::InvalidArgument, errors::kComponent,
               {"Expected value to be mirrored across towers"});
  expect_error([&] { strategy.call_for_each_tower([&] { strategy.update(v, add, number(1)); }); },
               Code::FailedPrecondition, errors::kWrongContext, {"cross-tower"});
}

// names: update_non_slot, grouped (ungrouped), colocate_vars_with
TEST_P(Towers, UpdateWhatBelongsToNoVariableAndColocate) {
  const auto scope = strategy.scope();
  std::vector<at::Tensor> state(static_cast<std::size_t>(n), number(0));
  int calls = 0;
  strategy.update_non_slot(strategy.non_slot_devices({}), [&] { ++calls; });
  EXPECT_EQ(calls, n);
  EXPECT_EQ(strategy.update_non_slot(
                strategy.worker_devices(), [](int x) { return x; }, 4, ungrouped),
            std::vector<int>(static_cast<std::size_t>(n), 4));
  EXPECT_THROW(strategy.update_non_slot({"gpu:77"}, [] {}), InvalidArgument);

  const Variable var1(number(1), {.name = "a"});
  std::optional<Variable> var2, var3;
  {
    const auto colocated = strategy.colocate_vars_with(var1);
    var2.emplace(number(2), VariableOptions{.name = "b"});
    var3.emplace(number(3), VariableOptions{.name = "c"});
  }
  EXPECT_EQ(var2->values().size(), var1.values().size());
  int seen = 0;
  strategy.update(
      var1,
      [&](const at::Tensor& a, const at::Tensor& b, const at::Tensor& c) {
        const auto k = static_cast<std::size_t>(seen++);
        EXPECT_TRUE(a.is_same(var1.values()[k]) && b.is_same(var2->values()[k]) && c.is_same(var3->values()[k]));
      },
      *var2, *var3);
  EXPECT_EQ(seen, n);
}

TEST(ContribVariables, WithoutAggregationCannotBeWrittenInTowers) {
  auto& strategy = towers(2);
  const auto scope = strategy.scope();
  Variable none(number(1), {.name = "none"});
  expect_error([&] { strategy.call_for_each_tower([&] { none.assign(2); }); }, Code::InvalidArgument,
               errors::kVariableAssign, {"You must specify an aggregation method"});
  Variable first(number(1), {.name = "first", .aggregation = Agg::ONLY_FIRST_TOWER});
  strategy.call_for_each_tower([&] { first.assign(3 + get_tower_context().tower_id()); });
  EXPECT_EQ(values_of(strategy.unwrap(first)), (Doubles{3, 3}));
}

// names: TowerLocalVariable
TEST_P(Towers, HaveVariablesOfTheirOwn) {
  const auto check = [&](VariableAggregation aggregation, double read, double after_assign) {
    TowerLocalVariable v = strategy.tower_local_variable(number(1), aggregation, "local");
    strategy.call_for_each_tower([&] {
      v.assign_add(get_tower_context().tower_id());
      EXPECT_EQ(value_of(v), 1 + get_tower_context().tower_id());
    });
    EXPECT_EQ(value_of(strategy.read_var(v)), read);
    const auto scope = strategy.scope();
    EXPECT_EQ(value_of(v.assign(6)), after_assign);
    EXPECT_EQ(strategy.unwrap(v).size(), static_cast<std::size_t>(n));
    expect_error([&] { v.assign_add(1); }, Code::FailedPrecondition, errors::kWrongContext,
                 {"Tower-local variables may only be assigned in a tower context."});
    v.load_state(v.state());
  };
  const double sum = n * (n + 1) / 2.0;
  check(Agg::SUM, sum, 6);
  check(Agg::NONE, sum, 6.0 * n);
  check(Agg::MEAN, sum / n, 6);
  check(Agg::ONLY_FIRST_TOWER, 1, 6);
}

TEST(ContribValues, OfAnotherNumberOfTowersAreRefused) {
  auto& strategy = towers(2);
  const auto three = ids(towers(3));
  for (const auto& call :
       std::vector<std::function<void()>>{[&] { strategy.reduce(Agg::SUM, three); }, [&] { strategy.unwrap(three); },
                                          [&] { strategy.unwrap(TowerValue(three)); },
                                          [&] {
                                            strategy.batch_reduce(Agg::SUM, {{three, "cpu:0"}});
                                          }})
    expect_error(call, Code::InvalidArgument, errors::kComponent, {"3 components, too many for 2 towers"});
}

// names: CrossTowerOps, ReductionToOneDeviceCrossTowerOps, AllReduceCrossTowerOps, MultiWorkerAllReduce
TEST(ContribCrossTowerOps, AreTakenByStrategies) {
  const std::vector<std::shared_ptr<CrossTowerOps>> all{
      std::make_shared<ReductionToOneDeviceCrossTowerOps>("cpu:0"),
      std::make_shared<AllReduceCrossTowerOps>("hierarchical_copy", 2),
      std::make_shared<MultiWorkerAllReduce>(std::vector<std::string>{"/job:worker/task:0"}, 0)};
  for (const auto& ops : all) {
    MirroredStrategy strategy({.devices = cpus(2), .cross_tower_ops = ops});
    EXPECT_EQ(value_of(strategy.reduce(Agg::SUM, ids(strategy), "cpu:0")), 1);
    EXPECT_EQ(&strategy.core().cross_device_ops(), ops.get());
  }
  EXPECT_THROW(AllReduceCrossTowerOps("ring"), InvalidArgument);
  EXPECT_THROW(AllReduceCrossTowerOps("nccl", 1, -1), InvalidArgument);
  EXPECT_THROW(MultiWorkerAllReduce({}, 0), InvalidArgument);
}

// names: configure, session_config, cluster_spec, task_type, task_id, CollectiveAllReduceStrategy
TEST(ContribConfigure, ChecksWhatItIsGiven) {
  MirroredStrategy strategy({.devices = cpus(2)});
  strategy.configure();
  EXPECT_EQ(strategy.num_towers(), 2);
  const ClusterSpec two{{"worker", {"127.0.0.1:1", "127.0.0.1:2"}}};
  expect_error([&] { strategy.configure({.cluster_spec = two, .task_type = "worker", .task_id = 0}); },
               Code::InvalidArgument, errors::kBadOption, {"`num_gpus` is required if `cluster_spec` is given"});
  expect_error([&] { strategy.configure({.devices = cpus(2)}); }, Code::InvalidArgument, errors::kBadOption,
               {"cluster_spec"});
  const ClusterSpec one{{"worker", {"127.0.0.1:1"}}};
  strategy.configure(
      {.session_config = 1, .cluster_spec = one, .task_type = "worker", .task_id = 0, .devices = cpus(3)});
  EXPECT_EQ(strategy.num_towers(), 3);
  EXPECT_EQ(strategy.worker_devices()[2], "/job:worker/replica:0/task:0/device:CPU:2");
  EXPECT_EQ(value_of(strategy.reduce(Agg::SUM, ids(strategy), strategy.worker_devices()[1])), 3);

  MirroredStrategy with_variable({.devices = cpus(2)});
  const auto old = with_variable.core().make_variable(number(1), {.name = "old"});
  expect_error(
      [&] { with_variable.configure({.cluster_spec = one, .task_type = "worker", .task_id = 0, .devices = cpus(2)}); },
      Code::FailedPrecondition, errors::kWrongContext, {"after the strategy was used"});

  CollectiveAllReduceStrategy collective;
  EXPECT_TRUE(collective.between_graph());
  collective.configure({.cluster_spec = one, .task_type = "worker", .task_id = 0});
  EXPECT_EQ(collective.num_towers(), 1);
}

}  // namespace
}  // namespace lockstep::contrib
