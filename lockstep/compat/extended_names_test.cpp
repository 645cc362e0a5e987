#include <ATen/TensorOperators.h>
#include <ATen/ops/full.h>
#include <gtest/gtest.h>

#include "lockstep/compat.h"
#include "tests/support/errors.h"

namespace lockstep {
namespace {

namespace v1 = compat::v1;
namespace v2 = compat::v2;

at::Tensor value_of(double value) { return at::full({}, value, at::kFloat); }
double item(const at::Tensor& value) { return value.item().toDouble(); }

struct CompatExtended : testing::Test {
  v1::MirroredStrategy strategy{cpus(2)};
  v1::StrategyExtended extended = strategy.extended();
  PerReplica<at::Tensor> x{{value_of(1), value_of(3)}};
};

// names: call_for_each_replica, StrategyExtended.call_for_each_replica
TEST_F(CompatExtended, CallsForEachReplica) {
  const auto add = [](const at::Tensor& a, double b) { return a + b; };
  EXPECT_EQ(item(extended.call_for_each_replica(add, std::tuple{x, 1.0})[1]), 4);
  EXPECT_EQ(item(v2::StrategyExtended(strategy.core()).call_for_each_replica(add, std::tuple{x}, 2.0)[0]), 3);
}

// names: reduce_to, batch_reduce_to, Mirrored
TEST_F(CompatExtended, ReducesToDestinations) {
  const v1::Mirrored<at::Tensor> everywhere = extended.reduce_to("sum", x, x);
  EXPECT_EQ(everywhere.size(), 2u);
  EXPECT_EQ(item(everywhere[1]), 4);
  EXPECT_EQ(extended.reduce_to(v1::ReduceOp::MEAN, x, "cpu:0", v1::CollectiveHints{}).size(), 1u);
  const auto results = extended.batch_reduce_to("mean", {{x, "cpu:0"}, {x, x}});
  EXPECT_EQ(item(results[1][1]), 2);
  const std::vector<v1::StrategyExtended::ReducePair> pairs{{x, "cpu:1"}};
  EXPECT_EQ(item(extended.batch_reduce_to(v1::ReduceOp::SUM, pairs)[0][0]), 4);
}

// names: update
TEST_F(CompatExtended, UpdatesComponents) {
  const auto v = strategy.core().make_variable(value_of(0));
  const auto add = [](at::Tensor w, const at::Tensor& delta, double scale) { return w.add_(delta * scale); };
  const Mirrored<at::Tensor> deltas({value_of(1), value_of(3)});
  const Mirrored<at::Tensor> results = extended.update(v, add, std::tuple{deltas}, 2.0);
  EXPECT_EQ(item(results[1]), 6);
  const std::vector<at::Tensor> each = extended.update(v, add, std::tuple{deltas, 1.0}, v1::None, std::false_type());
  EXPECT_EQ(item(each[0]), 3);
  extended.update(v, [](at::Tensor w) { w.zero_(); });
  EXPECT_EQ(item(v.values()[1]), 0);
}

// names: colocate_vars_with, variable_created_in_scope, value_container, read_var, group
TEST_F(CompatExtended, KnowsItsVariables) {
  const auto scope = strategy.scope();
  const Variable v(value_of(5));
  {
    const auto colocated = extended.colocate_vars_with(v);
    EXPECT_EQ(Variable(value_of(1)).values().size(), 2u);
  }
  EXPECT_TRUE(extended.variable_created_in_scope(v));
  EXPECT_EQ(std::get<Variable>(extended.value_container(v.values()[1])).name(), v.name());
  EXPECT_TRUE(std::holds_alternative<at::Tensor>(extended.value_container(value_of(1))));
  EXPECT_EQ(extended.value_container(7), 7);
  const at::Tensor before = extended.read_var(v);
  extended.update(v, [](at::Tensor w) { w.add_(1); });
  EXPECT_EQ(item(before), 5);
  EXPECT_EQ(item(extended.read_var(v)), 6);
  extended.group(v, before);
}

// names: non_slot_devices, update_non_slot
TEST_F(CompatExtended, UpdatesWhatBelongsToNoVariable) {
  const Devices devices = extended.non_slot_devices({});
  EXPECT_EQ(devices.size(), 2u);
  const auto twice = [](const at::Tensor& value) { return value * 2; };
  EXPECT_EQ(item(extended.update_non_slot(devices, twice, std::tuple{x})[1]), 6);
  EXPECT_EQ(extended.update_non_slot(devices, twice, std::tuple{}, x, std::false_type()).size(), 2u);
}

// names: broadcast_to
TEST_F(CompatExtended, Broadcasts) {
  EXPECT_EQ(item(extended.broadcast_to(value_of(4), x)[1]), 4);
  EXPECT_EQ(extended.broadcast_to(c10::Scalar(3), x).toInt(), 3);
}

// names: parameter_devices, worker_devices, experimental_between_graph, experimental_require_static_shapes,
// names: should_checkpoint, should_save_summary, experimental_should_init
TEST_F(CompatExtended, TellsWhatItIs) {
  EXPECT_EQ(extended.parameter_devices(), extended.worker_devices());
  EXPECT_EQ(extended.worker_devices()[1], "/job:localhost/replica:0/task:0/device:CPU:1");
  EXPECT_FALSE(extended.experimental_between_graph());
  EXPECT_FALSE(extended.experimental_require_static_shapes());
  EXPECT_TRUE(extended.should_checkpoint());
  EXPECT_TRUE(extended.should_save_summary());
  EXPECT_TRUE(extended.experimental_should_init());
}

// names: experimental_make_numpy_dataset
TEST_F(CompatExtended, MakesDatasetsOfArrays) {
  EXPECT_EQ(extended.experimental_make_numpy_dataset(at::full({4, 2}, 1)).cardinality().value(), 4);
  struct Session {};
  EXPECT_EQ(extended.experimental_make_numpy_dataset(at::full({4, 2}, 1), Session()).cardinality().value(), 4);
}

}  // namespace
}  // namespace lockstep
