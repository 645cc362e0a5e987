#include <ATen/TensorOperators.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/full.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/tensor.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <functional>
#include <map>

#include "lockstep/cluster.h"
#include "lockstep/compat.h"
#include "tests/support/errors.h"

// One test per name of the pages of TensorFlow 2.0 and 2.2; "names:" lists them for the automatic comparison.
namespace lockstep {
namespace {

namespace v1 = compat::v1;
namespace v2 = compat::v2;

v1::MirroredStrategy& two() {
  static v1::MirroredStrategy strategy({"cpu:0", "cpu:1"});
  return strategy;
}

at::Tensor number(double value) { return at::full({}, value, at::kFloat); }
double read(const at::Tensor& value) { return value.item().toDouble(); }
at::Tensor my_number() { return number(v1::get_replica_context().replica_id_in_sync_group() + 1.0); }

// names: MirroredStrategy, Strategy, num_replicas_in_sync, extended, CrossDeviceOps, NcclAllReduce
TEST(CompatStrategy, IsMadeOfDevicesAndOperations) {
  EXPECT_EQ(v1::MirroredStrategy().num_replicas_in_sync(), v1::MirroredStrategy(v1::None).num_replicas_in_sync());
  const v1::Strategy& base = two();
  EXPECT_EQ(base.num_replicas_in_sync(), 2);
  EXPECT_EQ(base.extended().worker_devices().size(), 2u);
  struct Fixed final : v1::CrossDeviceOps {
    Mirrored<at::Tensor> reduce(lockstep::ReduceOp, const PerReplica<at::Tensor>&, const Devices& to,
                                const CommunicationOptions&) override {
      return Mirrored<at::Tensor>(std::vector<at::Tensor>(to.size(), number(77)));
    }
  };
  const v1::MirroredStrategy own(cpus(2), std::make_shared<Fixed>());
  EXPECT_EQ(read(own.reduce("sum", own.run(my_number))), 77);
  const v1::MirroredStrategy nccl(cpus(3), std::make_shared<v1::NcclAllReduce>(2));
  EXPECT_EQ(read(nccl.reduce("sum", nccl.run(my_number))), 6);
  EXPECT_EQ(v1::MirroredStrategy({.devices = cpus(2), .seed = 5}).core().seed(), 5u);
}

// names: nccl default (cross_device_ops)
TEST(CompatStrategy, HasADefaultForMovingValues) {
  EXPECT_TRUE(two().core().cross_device_ops().is_one_order());
  EXPECT_EQ(error_of([] { v1::MirroredStrategy({"cpu:0", "cpu:0"}); }).code, Code::InvalidArgument);
}

// names: scope, has_strategy, get_strategy, in_cross_replica_context
TEST(CompatStrategy, ScopeMakesItCurrent) {
  EXPECT_FALSE(v1::has_strategy());
  EXPECT_FALSE(v1::in_cross_replica_context());
  EXPECT_EQ(v1::get_strategy().num_replicas_in_sync(), 1);
  {
    const auto scope = two().scope();
    EXPECT_TRUE(v1::has_strategy());
    EXPECT_TRUE(v1::in_cross_replica_context());
    EXPECT_EQ(&v1::get_strategy().core(), &two().core());
    EXPECT_EQ(v2::get_strategy().num_replicas_in_sync(), 2);
    const Variable v(number(1));
    EXPECT_EQ(v.values().size(), 2u);
  }
  EXPECT_FALSE(v1::has_strategy());
}

TEST(CompatStrategy, VariablesPrintAsInTensorFlow) {
  std::optional<Variable> left;
  {
    const v1::MirroredStrategy strategy({"cpu:0", "cpu:1"});
    const auto scope = strategy.scope();
    const Variable x(number(1), {.name = "x"});
    EXPECT_EQ(str(x),
              "MirroredVariable:{\n"
              "  0: <tf.Variable 'x:0' shape=() dtype=float32, numpy=1.0>,\n"
              "  1: <tf.Variable 'x/replica_1:0' shape=() dtype=float32, numpy=1.0>\n"
              "}");
    const Variable sum(at::ones({2}),
                       {.name = "s", .synchronization = Synchronization::OnRead, .aggregation = Aggregation::Sum});
    EXPECT_EQ(str(sum),
              "SyncOnReadVariable:{\n"
              "  0: <tf.Variable 's:0' shape=(2,) dtype=float32, numpy=array([1., 1.], dtype=float32)>,\n"
              "  1: <tf.Variable 's/replica_1:0' shape=(2,) dtype=float32, numpy=array([1., 1.], dtype=float32)>\n"
              "}");
    left = x;
  }
  EXPECT_TRUE(str(*left).starts_with("Variable OnWrite:{\n  0: <'x' shape=()")) << *left;  // its strategy is gone
  MirroredStrategy own(MirroredOptions{.devices = cpus(1)});
  EXPECT_EQ(str(own.make_variable(number(2), {.name = "y"})),
            "Variable OnWrite:{\n  0: <'y' shape=() dtype=float32 value=2.0>\n}");
  const v2::MultiWorkerMirroredStrategy alone({.devices = cpus(1)});
  EXPECT_EQ(str(alone.core().make_variable(number(2), {.name = "z"})),
            "MirroredVariable:{\n  0: <tf.Variable 'z:0' shape=() dtype=float32, numpy=2.0>\n}");
}

TEST(CompatStrategy, HandlesNoticeThatItIsGone) {
  std::optional<v1::Strategy> handle;
  std::optional<v1::StrategyExtended> extended;
  {
    const v1::MirroredStrategy strategy({"cpu:0", "cpu:1"});
    const auto scope = strategy.scope();
    handle = v1::get_strategy();
    extended.emplace(strategy.extended());
    EXPECT_EQ(handle->num_replicas_in_sync(), 2);
  }
  EXPECT_EQ(*handle, *handle);
  EXPECT_FALSE(*handle == v1::get_strategy());
  EXPECT_EQ(error_of([&] { handle->run(my_number); }).number, errors::kMixedStrategies);
  EXPECT_EQ(error_of([&] { extended->worker_devices(); }).number, errors::kMixedStrategies);
}

TEST(CompatStrategy, MovingAHandleIsCopyingIt) {
  v1::MirroredStrategy strategy(cpus(2));
  const v1::MirroredStrategy moved = std::move(strategy);
  EXPECT_EQ(strategy.num_replicas_in_sync(), 2);
  EXPECT_EQ(strategy, moved);
}

// names: experimental_set_strategy
TEST(CompatStrategy, SetStrategyOpensAScopeUntilTheNextCall) {
  v1::experimental_set_strategy(two());
  EXPECT_EQ(v1::get_strategy().num_replicas_in_sync(), 2);
  const v1::MirroredStrategy three(cpus(3));
  v1::experimental_set_strategy(three);
  EXPECT_EQ(v1::get_strategy().num_replicas_in_sync(), 3);
  {
    const auto scope = three.scope();
    const auto error = error_of([] { v1::experimental_set_strategy(v1::None); });
    EXPECT_EQ(error.code, Code::FailedPrecondition);
    EXPECT_FALSE(error.parts.help.empty());
  }
  v1::experimental_set_strategy(v1::None);
  EXPECT_FALSE(v1::has_strategy());
  {
    const auto scope = two().scope();
    error_of([] { v1::experimental_set_strategy(two()); });
  }
  EXPECT_FALSE(v1::has_strategy());
}

TEST(CompatStrategy, SetStrategyKeepsIt) {
  v1::experimental_set_strategy(v1::MirroredStrategy(cpus(2)));
  EXPECT_TRUE(v1::has_strategy());
  EXPECT_EQ(read(v1::get_strategy().reduce("sum", v1::get_strategy().run(my_number))), 3);
  v1::experimental_set_strategy(v1::None);
  EXPECT_FALSE(v1::has_strategy());
}

/// Errors mention calls that v1 has, and replicas.
TEST(CompatStrategy, ErrorsHaveItsOwnNames) {
  auto iterator = two().make_dataset_iterator(data::range(2).batch(2));
  const auto take_all = [&](auto& context, const PerReplica<at::Tensor>& rows) {
    context.set_last_step_output("rows", rows);
  };
  const auto steps = [&](auto step, int iterations = 1) {
    iterator.initialize();
    two().extended().experimental_run_steps_on_iterator(step, iterator, iterations);
  };
  const auto of_replicas = [&](auto& context, const PerReplica<at::Tensor>&) {
    two().run([&] { context.set_last_step_output("x", number(1)); });
  };
  const auto plain = [&](auto& context, const PerReplica<at::Tensor>&) {
    context.set_last_step_output("x", number(1), v1::ReduceOp::SUM);
  };
  const auto mirrored = [&](auto& context, const PerReplica<at::Tensor>& rows) {
    context.set_last_step_output("x", two().extended().broadcast_to(number(1), rows), v1::ReduceOp::MEAN);
  };
  Variable none = two().core().make_variable(number(1), {.name = "none"});
  const struct {
    std::function<void()> call;
    std::string fragment;
  } cases[] = {
      {[&] { steps(take_all, 2); }, "call initialize() to start again"},
      {[&] { steps(of_replicas); }, "pass ReduceOp::SUM or MEAN, or set the output outside of replicas"},
      {[&] { steps(plain); }, "cannot be reduced with SUM over 2 replicas"},
      {[&] { steps(mirrored); }, "one value, not one per replica"},
      {[&] {
         two().run([](int) {}, std::tuple{PerReplica<int>({1, 2, 3})});
       },
       "experimental_distribute_values_from_function"},
      {[&] {
         two().extended().call_for_each_replica([](int) {}, std::tuple{PerReplica<int>({1, 2, 3})});
       },
       "experimental_distribute_values_from_function"},
      {[&] {
         iterator.initialize();
         two().extended().experimental_run_steps_on_iterator(take_all, iterator, 1, {number(0)});
       },
       "a PerReplica output counts once per replica"},
      {[&] {
         iterator.initialize();
         const auto context = two().extended().experimental_run_steps_on_iterator(take_all, iterator);
         at::Tensor(context.last_step_outputs().at("rows")).numel();
       },
       "a value of 2 components is used as one"},
      {[&] { two().run([&] { iterator.initialize(); }); }, "initialize was called inside a replica"},
      {[&] { two().run([&] { none.assign(my_number()); }); }, "You must specify an aggregation method"},
      {[&] {
         two().extended().update(
             none, [](const at::Tensor&, const at::Tensor&) {}, std::tuple{two().run(my_number)});
       },
       "Expected value to be mirrored across replicas"},
      {[&] { two().make_input_fn_iterator([](const v1::InputContext&) { return [] { return 1; }; }).element_spec(); },
       "a callable has no element_spec"},
      {[&] { v1::ReduceOp("max"); }, "ReduceOp::SUM or ReduceOp::MEAN"},
      {[&] { v1::CollectiveCommunication("foo"); }, "CollectiveCommunication::AUTO"},
      {[&] { two().experimental_distribute_dataset(data::range(4)); },
       "experimental_distribute_datasets_from_function"},
  };
  for (const auto& [call, fragment] : cases) {
    const SeenError seen = error_of(call);
    EXPECT_TRUE(contains(seen.text, fragment)) << seen.text;
    for (const char* word : {"ower", "get_next_as_optional", " distribute_from", " local_results", "call_for_each"})
      EXPECT_FALSE(contains(seen.text, word)) << word << " in:\n" << seen.text;
  }
}

// names: run, RunOptions, PerReplica, DistributedValues
TEST(CompatStrategy, RunTakesArgsKwargsAndOptions) {
  const PerReplica<at::Tensor> x({number(1), number(2)});
  const auto sum = [](const at::Tensor& a, double b) { return a + b; };
  EXPECT_EQ(read(two().run(my_number)[1]), 2);
  EXPECT_EQ(read(two().run(sum, std::tuple{x, 10.0})[1]), 12);
  const std::map<std::string, PerReplica<at::Tensor>> kwargs{{"a", x}, {"b", x}};
  const auto named = [](double k, const std::map<std::string, at::Tensor>& of) { return of.at("a") * k + of.at("b"); };
  EXPECT_EQ(read(two().run(named, std::tuple{10.0}, kwargs, v1::RunOptions{})[1]), 22);
  EXPECT_EQ(two().run([] { return 3.0; }, std::tuple{}, v1::None, v1::RunOptions{}).values().size(), 2u);
  EXPECT_EQ(read(two().run(sum, std::tuple{x, 1.0}, v1::RunOptions{})[0]), 2);
  static_assert(std::is_base_of_v<v1::DistributedValues<v1::PerReplica, at::Tensor>, v1::PerReplica<at::Tensor>>);
}

// names: experimental_run_v2
TEST(CompatStrategy, RunV2IsRun) {
  const auto twice = [](const at::Tensor& x) { return x * 2; };
  EXPECT_EQ(read(two().experimental_run_v2(twice, std::tuple{number(3)})[1]), 6);
  EXPECT_EQ(read(two().experimental_run_v2(twice, std::tuple{}, number(4), v1::RunOptions{})[0]), 8);
}

// names: reduce, ReduceOp, experimental_local_results
TEST(CompatStrategy, ReducesWithAndWithoutAxis) {
  const PerReplica<at::Tensor> x({at::arange(4, at::kFloat), at::arange(4, 8, at::kFloat)});
  EXPECT_TRUE(at::equal(two().reduce(v1::ReduceOp::SUM, x), at::tensor({4.f, 6.f, 8.f, 10.f})));
  EXPECT_EQ(read(two().reduce("Sum", x, 0)), 28);
  EXPECT_TRUE(at::equal(two().reduce(std::string("MEAN"), x, v1::None), at::tensor({2.f, 3.f, 4.f, 5.f})));
  const PerReplica<at::Tensor> last({at::arange(4, at::kFloat), at::arange(4, 6, at::kFloat)});
  EXPECT_EQ(error_of([&] { two().reduce(v1::ReduceOp::SUM, last); }).code, Code::InvalidArgument);
  EXPECT_EQ(read(two().reduce(v1::ReduceOp::MEAN, last, 0)), 2.5);
  EXPECT_EQ(read(two().experimental_local_results(x)[1][0]), 4);
  EXPECT_EQ(v1::ReduceOp("mean"), v1::ReduceOp::MEAN);
  EXPECT_EQ(to_string(v1::ReduceOp::SUM), "SUM");
  EXPECT_TRUE(contains(error_of([] { v1::ReduceOp("max"); }).text, "not a valid ReduceOp"));
}

// names: gather
TEST(CompatStrategy, Gathers) {
  const PerReplica<at::Tensor> x({at::arange(1), at::arange(1, 3)});
  EXPECT_TRUE(at::equal(two().gather(x, 0), at::arange(3)));
}

// names: get_replica_context, ReplicaContext, replica_id_in_sync_group, ReplicaContext.all_reduce
TEST(CompatReplicaContext, IsNoneInCrossReplicaContext) {
  EXPECT_TRUE(v1::get_replica_context());  // the default one
  const auto scope = two().scope();
  EXPECT_FALSE(v1::get_replica_context());
  EXPECT_TRUE(v1::get_replica_context() == v1::None);
  EXPECT_FALSE(v2::get_replica_context());
  EXPECT_EQ(error_of([] { v1::get_replica_context().all_reduce("sum", number(1)); }).code, Code::FailedPrecondition);
  const auto results = two().run([] {
    const v1::ReplicaContext replica = v1::get_replica_context();
    EXPECT_EQ(replica.num_replicas_in_sync(), 2);
    EXPECT_EQ(replica.replica_id_in_sync_group() + 1, read(my_number()));
    EXPECT_EQ(replica.strategy(), v1::get_strategy());
    EXPECT_EQ(replica.devices().size(), 1u);
    EXPECT_EQ(replica.all_gather(my_number().reshape({1}), 0).numel(), 2);
    const auto both = replica.all_reduce("mean", std::pair{my_number(), my_number()});
    return both.second + replica.all_reduce(v1::ReduceOp::SUM, my_number(), v1::CollectiveHints{.timeout_seconds = 60});
  });
  EXPECT_EQ(read(results[0]), 4.5);
}

TEST(CompatReplicaContext, MergesWithTheStrategy) {
  const auto results = two().run([] {
    const auto merge = [](const v1::Strategy& strategy, const PerReplica<at::Tensor>& v, const PerReplica<int>& k) {
      EXPECT_EQ(&strategy.core(), &two().core());
      return strategy.reduce("sum", v) * k[1];
    };
    return v1::get_replica_context().merge_call(merge, std::tuple{my_number()}, 10);
  });
  EXPECT_EQ(read(results[1]), 30);
  two().run([] {
    v2::get_replica_context().merge_call([](const v2::Strategy& s) { EXPECT_EQ(s.num_replicas_in_sync(), 2); });
  });
}

// names: experimental_distribute_values_from_function, ValueContext
TEST(CompatStrategy, MakesValuesByAFunction) {
  const auto ids = two().experimental_distribute_values_from_function(
      [](const v1::ValueContext& c) { return 10 * c.num_replicas_in_sync + c.replica_id_in_sync_group; });
  EXPECT_EQ(ids[0], 20);
  EXPECT_EQ(ids[1], 21);
}

// names: update_config_proto, ConfigProto
TEST(CompatStrategy, UpdatesACopyOfTheConfig) {
  const v1::ConfigProto given{.allow_soft_placement = true, .device_filters = {"/job:ps"}};
  v1::ConfigProto expected = given;
  expected.isolate_session_state = true;
  EXPECT_EQ(two().update_config_proto(given), expected);
  EXPECT_FALSE(given.isolate_session_state);
  EXPECT_EQ(v1::get_strategy().update_config_proto(given), given);

  expected = given;
  expected.graph_options.rewrite_options.scoped_allocator_optimization = v1::ConfigProto::RewriterConfig::ON;
  expected.graph_options.rewrite_options.scoped_allocator_opts.enable_op = {"CollectiveReduce"};
  EXPECT_EQ(v1::experimental::MultiWorkerMirroredStrategy().update_config_proto(given), expected);

  const v1::experimental::MultiWorkerMirroredStrategy nccl(v1::CollectiveCommunication::NCCL);
  EXPECT_TRUE(nccl.update_config_proto(given).experimental.collective_nccl);

  // A cluster of one worker.
  const auto resolver = std::make_shared<SimpleClusterResolver>(
      ClusterSpec{{"worker", {"127.0.0.1:2222"}}}, SimpleClusterOptions{.task_type = "worker", .task_id = 0});
  const v1::experimental::MultiWorkerMirroredStrategy worker(v1::CollectiveCommunication::AUTO, resolver);
  expected.experimental.collective_group_leader = "/job:worker/replica:0/task:0";
  expected.device_filters = {"/job:worker/task:0"};
  EXPECT_EQ(worker.update_config_proto(given), expected);
}

template <class S>
concept HasV1Names = requires(S& s, data::Dataset<at::Tensor> d, at::Tensor t) {
  s.run(my_number);
}
|| requires(S& s) { s.experimental_run(my_number); }
|| requires(S& s, data::Dataset<at::Tensor> d) { s.make_dataset_iterator(d); }
|| requires(S& s) { s.update_config_proto(v1::ConfigProto()); }
|| requires(S& s, at::Tensor t) { s.reduce(v1::ReduceOp::SUM, t); }
|| requires(S& s, at::Tensor t) { s.experimental_make_numpy_dataset(t, v1::None); };

// Names that v2's page lacks. If one of them were in v2 as well, `in_both::Name` would be ambiguous and not compile.
namespace absent {
struct InputIterator;
struct RunOptions;
struct ValueContext;
struct InputReplicationMode;
struct CollectiveHints;
struct ConfigProto;
struct CrossDeviceOps;
}  // namespace absent
namespace in_both {
using namespace absent;      // NOLINT(google-build-using-namespace)
using namespace compat::v2;  // NOLINT(google-build-using-namespace)
}  // namespace in_both
using Absent =
    std::tuple<in_both::InputIterator*, in_both::RunOptions*, in_both::ValueContext*, in_both::InputReplicationMode*,
               in_both::CollectiveHints*, in_both::ConfigProto*, in_both::CrossDeviceOps*>;
static_assert(std::is_same_v<std::tuple_element_t<1, Absent>, absent::RunOptions*>);

// names: TF_CONFIG, cluster_spec, task_type, task_id
TEST(CompatMultiWorker, ReadsItsClusterFromTheEnvironment) {
  const struct TfConfig {
    TfConfig() {
      ::setenv("TF_CONFIG", R"({"cluster": {"chief": ["127.0.0.1:1"]}, "task": {"type": "chief", "index": 0}})", 1);
    }
    ~TfConfig() { ::unsetenv("TF_CONFIG"); }
  } environment;
  const TFConfigClusterResolver resolver;
  EXPECT_EQ(resolver.cluster_spec().num_tasks("chief"), 1);
  EXPECT_EQ(resolver.task_type(), "chief");
  EXPECT_EQ(resolver.task_id(), 0);
  const v2::MultiWorkerMirroredStrategy strategy({.devices = cpus(1)});
  EXPECT_EQ(strategy.extended().worker_devices()[0], "/job:chief/replica:0/task:0/device:CPU:0");
}

// names: experimental.MultiWorkerMirroredStrategy, CollectiveCommunication, CollectiveHints, CollectiveOps (communication)
TEST(CompatMultiWorker, HasTheNamesOfItsPageOnly) {
  static_assert(HasV1Names<v1::MirroredStrategy>);
  static_assert(!HasV1Names<v2::MultiWorkerMirroredStrategy>);
  static_assert(std::is_same_v<v2::MultiWorkerMirroredStrategy, v2::experimental::MultiWorkerMirroredStrategy>);
  const v2::experimental::MultiWorkerMirroredStrategy alone(v2::CollectiveCommunication::RING);
  EXPECT_EQ(alone.core().communication().implementation, Implementation::Ring);
  EXPECT_EQ(v2::CollectiveCommunication("nccl"), v1::CommunicationImplementation::NCCL);
  EXPECT_EQ(v2::CollectiveCommunication(std::string("Ring")), v2::CollectiveCommunication::RING);
  const v2::MultiWorkerMirroredStrategy strategy({.devices = cpus(2)});
  EXPECT_EQ(strategy.num_replicas_in_sync(), 2);
  EXPECT_TRUE(strategy.extended().experimental_between_graph());
  const auto sum = [](const at::Tensor& x, double y) {
    return v2::get_replica_context().all_reduce("sum", x * y, v1::CollectiveHints{.bytes_per_pack = 64});
  };
  const auto results = strategy.experimental_run_v2(sum, std::tuple{number(3)}, 2.0);
  EXPECT_EQ(read(strategy.experimental_local_results(results)[1]), 12);
  EXPECT_EQ(read(strategy.reduce(v2::ReduceOp::MEAN, results, v2::None)), 12);
  const auto summed = error_of([&] { strategy.reduce("sum", number(1), v2::None); });
  EXPECT_TRUE(contains(summed.text, "what experimental_run_v2 returned")) << summed.text;
  const auto nested = error_of([&] { strategy.experimental_run_v2([&] { strategy.experimental_run_v2([] {}); }); });
  EXPECT_TRUE(contains(nested.parts.help, "strategy.experimental_run_v2 outside of the function given to experim"))
      << nested.text;
  EXPECT_EQ(strategy.experimental_make_numpy_dataset(at::ones({10})).cardinality().value(), 10);
  const CommunicationOptions options = v1::CollectiveHints{.bytes_per_pack = 64, .timeout_seconds = 3};
  EXPECT_EQ(options, (CommunicationOptions{.bytes_per_pack = 64, .timeout_seconds = 3}));
}

}  // namespace
}  // namespace lockstep
