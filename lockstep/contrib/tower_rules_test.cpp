// What the calls of towers take, refuse and say, in tables.

#include <ATen/ops/full.h>
#include <ATen/ops/ones.h>
#include <gtest/gtest.h>

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "lockstep/contrib.h"
#include "lockstep/lockstep.h"
#include "tests/support/errors.h"
#include "tests/support/expect_error.h"

namespace lockstep::contrib {
namespace {

using Agg = VariableAggregation;

at::Tensor one() { return at::full({}, 1.0); }

struct TwoTowers : testing::Test {
  MirroredStrategy strategy{{.devices = cpus(2)}};
  PerDevice<at::Tensor> ids =
      strategy.call_for_each_tower([] { return at::full({}, static_cast<double>(get_tower_context().tower_id())); });
};

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
               {"a longer list", std::vector<std::string>{"cpu:1", "cpu:0", "cpu:1"}, 3},
               {"the value itself", ids, 2},
               {"a mirrored value", strategy.broadcast(one()), 2},
               {"a variable", v, 2},
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
  EXPECT_EQ(strategy.reduce(Agg::SUM, local, "cpu:0").item<double>(), 2);
}

/// Counts the batches that it is given.
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

/// Each is wrong in one way. Errors have help, and speak of towers.
TEST_F(TwoTowers, SayWhatIsWrongInTheirOwnWords) {
  auto v = strategy.core().make_variable(one(), {.name = "v"});
  auto local = strategy.tower_local_variable(one(), Agg::SUM, "local");
  const Variable on_read = local.variable();
  const auto in_towers = [&](const std::function<void()>& f) {
    return [this, f] { strategy.call_for_each_tower([&] { f(); }); };
  };
  const auto in_first_tower = [&](const std::function<void()>& f) {
    return in_towers([f] {
      if (get_tower_context().tower_id() == 0) f();
    });
  };
  const PerDevice<at::Tensor> shapes({at::ones({2}), at::ones({3})});
  const auto add = [](at::Tensor component, const at::Tensor& x) { component.add_(x); };
  const auto merge = [] { get_tower_context().merge_call([](DistributionStrategy&) {}); };
  auto steps = strategy.distribute_dataset([] { return data::range(4); }).make_one_shot_iterator();
  auto uneven = strategy.map(std::vector<int>{1, 2}, [](int n) { return at::ones({n}); });
  MirroredStrategy other({.devices = cpus(2)});

  const struct {
    std::function<void()> call;
    std::string fragment;
  } cases[] = {
      {in_towers([&] { strategy.reduce(Agg::SUM, ids, "cpu:0"); }), "cross-tower context"},
      {in_towers([&] { strategy.broadcast(one()); }), "cross-tower context"},
      {in_towers([&] { strategy.unwrap(ids); }), "cross-tower context"},
      {in_towers([&] { strategy.map(std::vector<int>{1}, [](int x) { return x; }); }), "cross-tower context"},
      {in_towers([&] { strategy.update_non_slot({"cpu:0"}, [] {}); }), "cross-tower context"},
      {in_towers([&] { strategy.distribute_dataset([] { return data::range(4); }); }), "cross-tower context"},
      {in_towers([&] { auto inner = strategy.scope(); }), "tower"},
      {in_towers([&] { steps.get_next(); }), "call it first and pass what it returns as an argument"},
      {[&] {
         const auto its = strategy.scope();
         get_tower_context();
       },
       "in_cross_tower_context() says where you are"},
      {in_towers([&] { other.call_for_each_tower([] {}); }), "strateg"},
      {in_first_tower(merge), "Some towers made a different number of"},
      {in_towers([&] { v.assign(2); }), "You must specify an aggregation method"},
      {[&] {
         strategy.call_for_each_tower([](int) {}, PerDevice<int>({1, 2, 3}));
       },
       "tower"},
      {[&] { strategy.update(v, add, ids); }, "Expected value to be mirrored across towers"},
      {[&] { strategy.update(v, add, local); }, "Expected value to be mirrored across towers"},
      {[&] { strategy.update(v, add, on_read); }, "Expected value to be mirrored across towers"},
      {[&] {
         strategy.update_non_slot(
             {"cpu:0"}, [](const at::Tensor&) {}, local);
       },
       "Expected value to be mirrored"},
      {[&] {
         strategy.map(
             std::vector<int>{1}, [](int, const at::Tensor& x) { return x; }, local);
       },
       "Expected value to be mirrored"},
      {[&] { local.assign_add(1); }, "Tower-local variables may only be assigned in a tower context."},
      {[&] { local.assign_sub(1); }, "Tower-local variables may only be assigned in a tower context."},
      {[&] { strategy.reduce(Agg::SUM, shapes, "cpu:0"); }, "values of one shape"},
      {[&] { strategy.reduce(Agg::SUM, uneven, "cpu:0"); }, "shape"},
      {[&] { strategy.reduce(Agg::MEAN, v, "cpu:0"); }, "Mirrored"},
      {[&] { strategy.reduce(Agg::SUM, ids, std::vector<std::string>{}); }, "destinations can not be empty"},
      {[&] { strategy.reduce(Agg::SUM, ids, "gpu:77"); }, "GPU"},
      {[&] { strategy.reduce(Agg::SUM, ids, "/job:worker/task:7/device:CPU:0"); }, "task:7"},
      {[&] { strategy.broadcast(one(), "no device"); }, "no device"},
      {[&] {
         strategy.batch_reduce(Agg::SUM, {{ids, ids}, {3, ids}});
       },
       "cannot be reduced"},
      {[&] {
         strategy.batch_reduce(Agg::NONE, {{ids, ids}});
       },
       "got NONE"},
      {[&] {
         auto iterator = strategy.distribute_dataset([] { return data::range(4); }).make_one_shot_iterator();
         strategy.run_steps_on_dataset(
             [&](MultiStepContext& ctx, const auto&) { ctx.set_last_step_output("x", shapes, Agg::SUM); }, iterator);
       },
       "values of one shape"},
      {[&] {
         const auto its = other.scope();
         const auto colocated = strategy.colocate_vars_with(v);
       },
       "strateg"},
      {[&] {
         strategy.configure({.cluster_spec = ClusterSpec{{"worker", {"h:1"}}}, .devices = cpus(2)});
       },
       "task_type"},
      {[&] {
         strategy.configure({.cluster_spec = ClusterSpec{{"worker", {"h:1"}}},
                             .task_type = "worker",
                             .task_id = 0,
                             .devices = Devices{"cpu:0", "cpu:0"}});
       },
       "CPU:0"},
      {[] { set_logical_cpus(0); }, "must be >= 1, got 0"},
  };
  for (std::size_t i = 0; i < std::size(cases); ++i) {
    SCOPED_TRACE(str("case ", i, ": ", cases[i].fragment));
    const SeenError seen = error_of(cases[i].call);
    EXPECT_TRUE(contains(seen.text, cases[i].fragment)) << seen.text;
    EXPECT_NE(seen.parts.help, "") << seen.text;
    std::string words = seen.text;
    for (std::size_t at; (at = words.find("/replica:")) != std::string::npos;) words.erase(at, 9);
    EXPECT_FALSE(contains(words, "eplica")) << seen.text;
  }
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
