// What the calls of towers take, refuse and say, in tables.

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
  // Once these were one text between two pointers.
  EXPECT_EQ(strategy.reduce(Agg::SUM, ids, {"cpu:0", "cpu:1"}).size(), 2U);
  EXPECT_EQ(strategy.broadcast(one(), {"cpu:1", "cpu:0", "cpu:1"}).size(), 2U);
  EXPECT_EQ(strategy.broadcast(2.5)[1].item<double>(), 2.5);
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
  const Variable on_read = local;
  const auto mean = strategy.tower_local_variable(one(), Agg::MEAN, "mean");
  auto rows_of_towers = strategy.tower_local_variable(at::ones({2}), Agg::NONE, "rows");
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
  auto truths = strategy.map(std::vector<int>{1, 2, 3}, [](int n) { return at::full({}, n > 1, at::kBool); });
  const auto any = [](const auto&...) {};
  struct Settings {
    double rate;
    Variable state;
  };
  MirroredStrategy other({.devices = cpus(2)});
  auto summed = strategy.core().make_variable(one(), {.name = "summed", .aggregation = Agg::SUM});
  auto table = strategy.core().make_variable(at::ones({3}), {.name = "table", .aggregation = Agg::SUM});
  const PerDevice<IndexedSlices> rows(
      {{at::ones({1}), at::ones({1}, at::kLong), {3}}, {at::ones({1}), at::ones({1}, at::kLong), {3}}});
  const auto unused = [] { return MirroredStrategy({.devices = cpus(2)}); };
  const ConfigureOptions alone{
      .cluster_spec = ClusterSpec{{"worker", {"127.0.0.1:1"}}}, .task_type = "worker", .task_id = 0};

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
      {[&] {
         strategy.update(v, any, std::pair{local, 1});
       },
       "Expected value to be mirrored across towers"},
      {[&] {
         strategy.update(v, any, std::vector{TowerValue(1), TowerValue(ids)});
       },
       "Expected value to be mirrored"},
      {[&] { strategy.update(v, any, std::optional{on_read}); }, "Expected value to be mirrored across towers"},
      {[&] { strategy.update(v, any, Settings{.rate = 1, .state = on_read}); }, "Expected value to be mirrored"},
      {[&] {
         strategy.update_non_slot({"cpu:1", "cpu:1"}, [] {});
       },
       "cpu:1 is named twice"},
      {[&] { strategy.update_non_slot({}, [] {}); }, "needs at least one device"},
      {[&] { strategy.update_non_slot({"cpu:0"}, any, strategy.reduce(Agg::SUM, ids, {"cpu:1"})); },
       "a mirrored argument of update_non_slot has no component on /job:localhost/replica:0/task:0/device:CPU:0"},
      {[&] {
         strategy.update(v, any, std::pair{strategy.broadcast(one(), {"cpu:0"}), 1});
       },
       "no component on"},
      {[&] { strategy.call_for_each_tower(any, strategy.broadcast(one(), {"cpu:1"})); }, "no component on"},
      {in_towers([&] { steps.initialize(); }), "initialize was called inside a tower"},
      {in_towers([&] { steps.initializer(); }), "initialize was called inside a tower"},
      {[&] { strategy.reduce(Agg::SUM, truths, "cpu:0"); }, "bool values have no sum"},
      {[&] { strategy.reduce(Agg::MEAN, truths, "cpu:0"); }, "bool values have no sum"},
      {[&] { at::Tensor(TowerValue(ids)).item<double>(); }, "a value of 2 components is used as one"},
      {[&] { strategy.broadcast(uneven); }, "a value of 2 results of map is used as one"},
      {[&] { local.assign_add(1); }, "Tower-local variables may only be assigned in a tower context."},
      {[&] { local.assign_sub(1); }, "Tower-local variables may only be assigned in a tower context."},
      {[&] { Variable(mean).assign_add(1); }, "Tower-local variables may only be assigned in a tower context."},
      {[&] { rows_of_towers[0] += 1; }, "Tower-local variables may only be assigned in a tower context."},
      {[&] { (void)at::Tensor(ids); }, "a PerDevice of 2 components is used as one value outside of a tower"},
      {[&] { v.assign(ids); }, "Expected value to be mirrored across towers, got a PerDevice"},
      {[&] { Variable(local).assign(ids); }, "a PerDevice cannot be assigned to a tower-local variable"},
      {[&] { (void)ids[2]; }, "component 2 of a PerDevice with 2 components"},
      {[&] {
         const auto scope = strategy.scope();
         (void)v.handle();
       },
       "call it inside call_for_each_tower"},
      {[&] {
         local.scatter_add({at::ones({1}), at::zeros({1}, at::kLong), {1}});
       },
       "tower-local"},
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
         unused().configure({.cluster_spec = ClusterSpec{{"worker", {"h:1"}}}, .devices = cpus(2)});
       },
       "task_type"},
      {[&] {
         unused().configure({.cluster_spec = ClusterSpec{{"worker", {"h:1"}}},
                             .task_type = "worker",
                             .task_id = 0,
                             .devices = Devices{"cpu:0", "cpu:0"}});
       },
       "CPU:0"},
      {[] { set_logical_cpus(0); }, "must be >= 1, got 0"},
      {[&] {
         unused().configure({.cluster_spec = ClusterSpec{{"worker", {"h:1"}}}, .task_id = 0, .devices = cpus(2)});
       },
       "or task_type and task_id of configure"},
      {[&] { strategy.configure(alone); }, "configure was called after the strategy was used"},
      {in_towers([&] { strategy.configure(alone); }), "configure was called inside a scope or a tower"},
      {[&] {
         const auto its = strategy.scope();
         strategy.configure(alone);
       },
       "configure was called inside a scope or a tower"},
      {[&] {
         strategy.map(
             std::vector<int>{0, 1}, [](int, const auto& pair) { return at::Tensor(pair.first); }, std::pair{ids, 1});
       },
       "Expected value to be mirrored across towers"},
      {[&] {
         strategy.map(
             std::vector<int>{0, 1}, [](int, const at::Tensor& x) { return x; }, TowerValue(ids));
       },
       "Expected value to be mirrored across towers"},
      {[&] {
         strategy.map(std::vector<int>{0, 1}, [&](int) { return at::Tensor(ids); });
       },
       "strategy.unwrap(...) for single components"},
      {[&] {
         const auto its = other.scope();
         strategy.read_var(on_read);
       },
       "strateg"},
      {[&] {
         strategy.batch_reduce(Agg::NONE, {{rows, "cpu:0"}});
       },
       "VariableAggregation::SUM, MEAN or ONLY_FIRST_TOWER, got NONE"},
      {[&] { strategy.reduce(Agg::SUM, strategy.map(std::vector<int>{}, [](int x) { return x; })); }, "no items"},
      {in_towers([&] {
         table.scatter_max({at::ones({1}), at::ones({1}, at::kLong), {3}});
       }),
       "scatter_max needs VariableAggregation::NONE or ONLY_FIRST_TOWER, got VariableAggregation::SUM"},
      {in_towers([&] { summed.assign(3.0); }), "VariableAggregation::MEAN or ONLY_FIRST_TOWER"},
      {[&] {
         auto short_steps = strategy.distribute_dataset([] { return data::range(3); }).make_one_shot_iterator();
         strategy.run_steps_on_dataset([](MultiStepContext&, const PerDevice<at::Tensor>&) {}, short_steps, 2);
       },
       "call initialize() for another pass"},
      {[&] {
         strategy.run_steps_on_dataset(
             [&](MultiStepContext& ctx, const auto&) { ctx.set_last_step_output("x", uneven); }, steps);
       },
       "the output \"x\" of towers or map needs an aggregation"},
      {[&] {
         strategy.run_steps_on_dataset(
             [&](MultiStepContext& ctx, const auto&) {
               strategy.call_for_each_tower([&] { ctx.set_last_step_output("x", 1.0); });
             },
             steps);
       },
       "pass VariableAggregation::SUM, MEAN or ONLY_FIRST_TOWER, or set the output outside of towers"},
      {[&] {
         std::optional<TowerContext> kept;
         strategy.call_for_each_tower([&] {
           if (get_tower_context().tower_id() == 0) kept = get_tower_context();
         });
         kept->merge_call([](DistributionStrategy&) {});
       },
       "merge_call"},
      {[] {
         MirroredStrategy wide({.devices = Devices{"/job:worker/task:0/cpu:0", "/job:worker/task:1/cpu:0"}});
       },
       "call configure with their cluster_spec"},
      {[&] { (void)TowerValue(shapes).tensor(); }, "strategy.unwrap(value)"},
  };
  for (std::size_t i = 0; i < std::size(cases); ++i) {
    SCOPED_TRACE(str("case ", i, ": ", cases[i].fragment));
    const SeenError seen = error_of(cases[i].call);
    EXPECT_TRUE(contains(seen.text, cases[i].fragment)) << seen.text;
    EXPECT_NE(seen.parts.help, "") << seen.text;
    std::string words = seen.text;
    for (const std::string part : {"/replica:", "job, replica and task"})  // of the name of a device
      for (std::size_t at; (at = words.find(part)) != std::string::npos;) words.erase(at, part.size());
    for (const char* word : {"eplica", "get_next_as_optional", "local_results", ".strict", "all_reduce", "OnlyFirst",
                             "resolver", "values_from_function", "given to run", " of run", "where: run"})
      EXPECT_FALSE(contains(words, word)) << word << " in:\n" << seen.text;
    EXPECT_EQ(words.find("on tower"), words.rfind("on tower")) << seen.text;
  }
}

TEST_F(TwoTowers, SpeakInLogsAndPrintedValuesToo) {
  EXPECT_EQ(str(PerDevice<int>({1, 2})), "PerDevice:{\n  0: 1,\n  1: 2\n}");
  const LoggedLines lines;
  const auto fail = [] { throw std::runtime_error(get_tower_context().tower_id() == 0 ? "first" : "second"); };
  EXPECT_THROW(strategy.call_for_each_tower(fail), std::runtime_error);
  EXPECT_EQ(lines.count("tower 1 failed too"), 1);
}

TEST_F(TwoTowers, LeaveTheProgramItsOwnWords) {
  const auto says = [&](const auto& f, const std::string& text) {
    const SeenError seen = error_of([&] { strategy.call_for_each_tower(f); });
    EXPECT_TRUE(contains(seen.text, text)) << seen.text;
  };
  says(
      [] {
        for (const auto& line : data::text_line_dataset({"out/best-replica.txt"})) (void)line;
      },
      "out/best-replica.txt");
  says([] { throw NotFound(7, {.what = "the replica set is down"}); }, "the replica set is down");
  says([] { throw NotFound(7, {.what = "lost", .where = "towerdb.cpp"}); }, "towerdb.cpp, on tower 0");
  const LoggedLines lines;
  log_info("my replica set is up");
  EXPECT_EQ(lines.count("my replica set is up"), 1);
}

TEST_F(TwoTowers, LeaveStrategiesOfTheMainApiTheirWords) {
  const auto printed = [] { return str(PerReplica<int>({1})).substr(0, 10); };
  EXPECT_EQ(printed(), "PerDevice:");
  {
    lockstep::MirroredStrategy other({.devices = cpus(2)});
    EXPECT_EQ(printed(), "PerReplica");  // which of the two it is for cannot be known
    const auto of_replica = other.run([&] { return printed(); });
    EXPECT_EQ(of_replica[1], "PerReplica");
    const auto of_tower = strategy.call_for_each_tower([&] { return printed(); });
    EXPECT_EQ(of_tower[1], "PerDevice:");
    auto local = strategy.tower_local_variable(one(), Agg::SUM, "local");
    EXPECT_TRUE(contains(error_of([&] { local.assign_add(1); }).text, "Tower-local variables"));
    const auto seen = error_of([&] { strategy.call_for_each_tower([&] { other.run([] {}); }); });
    EXPECT_FALSE(contains(seen.text, "where: call_for_each_tower")) << seen.text;
    const auto scope = strategy.scope();
    EXPECT_EQ(printed(), "PerDevice:");
  }
  EXPECT_EQ(printed(), "PerDevice:");
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
  EXPECT_EQ(log.count("TF_CONFIG names 2 workers, and this one trains alone: no cluster was given to configure"), 1);
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
