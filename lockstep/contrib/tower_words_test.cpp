// Calls that towers reject, and the terms in errors, log lines and printed values.

#include <ATen/ops/full.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/tensor.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <functional>
#include <memory>
#include <optional>
#include <stdexcept>
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

/// Each call is wrong in one way. Errors have help, and use the term tower.
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
    for (const std::string part : {"/replica:", "job, replica and task"})  // from the name of a device
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
    EXPECT_EQ(printed(), "PerReplica");  // it is unknown which of the two it is for
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

}  // namespace
}  // namespace lockstep::contrib
