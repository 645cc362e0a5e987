#include <ATen/CPUGeneratorImpl.h>
#include <ATen/Context.h>
#include <ATen/ops/rand.h>

#include <cstdlib>
#include <limits>
#include <memory>
#include <thread>

#include "lockstep/strategy/default_strategy.h"
#include "lockstep/strategy/multi_worker_strategy.h"
#include "lockstep/strategy/values_of_all.h"
#include "tests/support/errors.h"
#include "tests/support/misuse.h"
#include "tests/support/nest.h"
#include "tests/support/replicas.h"
#include "tests/support/watchdog.h"

// Calls in the wrong context and mixtures of strategies; and what every wrong use must show.
namespace lockstep {

using namespace std::chrono_literals;

TEST_P(MisuseTest, SaysWhatIsWrongAndWhatToDo) {
  const Misuse& misuse = GetParam();
  const Watchdog watchdog(60s, misuse.name);
  World world;
  const SeenError seen = error_of([&] { misuse.call(world); });
  EXPECT_EQ(to_string(seen.code), to_string(misuse.code)) << seen.text;
  EXPECT_EQ(seen.number, misuse.number) << seen.text;
  for (const char* fragment : misuse.fragments)
    EXPECT_NE(seen.text.find(fragment), std::string::npos) << "no '" << fragment << "' in\n" << seen.text;
  EXPECT_FALSE(seen.parts.help.empty()) << "says nothing about what to do:\n" << seen.text;
  EXPECT_FALSE(explain(seen.number).empty());

  EXPECT_FALSE(has_strategy());
  const auto sums =
      world.a.run([] { return get_replica_context().all_reduce(ReduceOp::Sum, at::ones({})).item<float>(); });
  EXPECT_EQ(sums.values(), (std::vector{2.0f, 2.0f}));
  for (const auto* variable :
       {&world.none, &world.sum, &world.mean, &world.first, &world.table, &world.total, &world.guarded}) {
    for (const auto& component : variable->values())
      EXPECT_EQ(component.abs().sum().item<float>(), 0) << variable->name() << " was changed";
  }
}

namespace {

// clang-format off
const Misuse kContexts[] = {
    {"RunInsideAReplica", [](World& w) { w.in_replicas([&](auto&) { w.a.run([] {}); }); }, kPrecondition, errors::kWrongContext,
     {"inside a replica function", "cross-replica context", "merge_call", "on replica 0"}},
    {"ReduceInsideAReplica", [](World& w) { w.in_replicas([&](auto&) { w.a.reduce(ReduceOp::Sum, pair(at::ones({}), at::ones({}))); }); },
     kPrecondition, errors::kWrongContext, {"cross-replica context", "all_reduce"}},
    {"GatherInsideAReplica", [](World& w) { w.in_replicas([&](auto&) { w.a.gather(pair(at::ones({1}), at::ones({1})), 0); }); },
     kPrecondition, errors::kWrongContext, {"cross-replica context", "all_gather"}},
    {"ValuesOfAllInsideAReplica", [](World& w) { w.in_replicas([&](auto&) { values_of_all(w.a, PerReplica<int>({1, 2})); }); },
     kPrecondition, errors::kWrongContext, {"cross-replica context"}},
    {"ValuesOfAllOfTooFew", [](World& w) { values_of_all(w.a, PerReplica<int>({1})); },
     kArgument, errors::kComponent, {"a value for each local replica", "1 value for 2 local replicas"}},
    {"ScopeInsideAReplica", [](World& w) { w.in_replicas([&](auto&) { const auto scope = w.a.scope(); }); }, kPrecondition,
     errors::kWrongContext, {"cross-replica context"}},
    {"MakeVariableInsideAReplica", [](World& w) { w.in_replicas([&](auto&) { w.a.make_variable(at::ones({})); }); }, kPrecondition,
     errors::kWrongContext, {"cross-replica context"}},
    {"ReduceToInsideAReplica", [](World& w) { w.in_replicas([&](auto&) { w.a.extended().reduce_to(ReduceOp::Sum, pair(at::ones({}), at::ones({})), "cpu:0"); }); },
     kPrecondition, errors::kWrongContext, {"cross-replica context"}},
    {"BroadcastInsideAReplica", [](World& w) { w.in_replicas([&](auto&) { w.a.extended().broadcast_to(at::ones({}), "cpu:0"); }); },
     kPrecondition, errors::kWrongContext, {"cross-replica context"}},
    {"UpdateNonSlotInsideAReplica",
     [](World& w) { w.in_replicas([&](auto&) { w.a.extended().update_non_slot(w.a.devices(), [] { return 1; }); }); }, kPrecondition,
     errors::kWrongContext, {"cross-replica context"}},
    {"RestoreInsideAReplica", [](World& w) { w.in_replicas([&](auto&) { w.sum.load_state(at::ones({2})); }); }, kPrecondition,
     errors::kWrongContext, {"cross-replica context"}},
    {"ReplicaContextOutsideOfReplicas",
     [](World& w) {
       const auto scope = w.a.scope();
       get_replica_context();
     },
     kPrecondition, errors::kWrongContext, {"outside of replicas", "inside the function given to run"}},
    {"ReplicaContextInsideAMergeFunction", [](World& w) { w.in_replicas([](auto& r) { r.merge_call([](Strategy&) { get_replica_context(); }); }); },
     kPrecondition, errors::kWrongContext, {"outside of replicas"}},
    {"AStoredContextAfterTheRun",
     [](World& w) {
       ReplicaContext* stored = nullptr;
       w.in_replicas([&](auto& r) { stored = my_id() == 1 ? &r : stored; });
       stored->all_reduce(ReduceOp::Sum, at::ones({}));
     },
     kPrecondition, errors::kWrongContext, {"outside of its strategy's replicas", "strategy.run"}},
    {"AStoredContextInsideAScope",
     [](World& w) {
       const auto scope = w.a.scope();
       w.a.replica_context(0).merge_call([](Strategy&) {});
     },
     kPrecondition, errors::kWrongContext, {"merge_call was called outside of replicas"}},
    {"TheContextOfAnotherReplica", [](World& w) { w.in_replicas([&](auto&) { w.a.replica_context(0).all_gather(at::ones({1}), 0); }); },
     kPrecondition, errors::kWrongContext, {"ReplicaContext of another replica", "get_replica_context()"}},
    {"TheContextOfAnotherStrategy", [](World& w) { w.in_replicas([&](auto&) { w.b.replica_context(0).merge_call([](Strategy&) {}); }); },
     kPrecondition, errors::kMixedStrategies, {"ReplicaContext of another strategy"}},
    {"AReplicasContextOnAThreadOfItsOwn",
     [](World& w) {
       w.in_replicas([](auto& r) {
         std::exception_ptr error;
         std::thread([&] {
           try {
             r.all_reduce(ReduceOp::Sum, at::ones({}));
           } catch (...) {
             error = std::current_exception();
           }
         }).join();
         if (error) std::rethrow_exception(error);
       });
     },
     kPrecondition, errors::kWrongContext, {"outside of its strategy's replicas"}},
    {"PerReplicaOutsideOfReplicas",
     [](World&) {
       const auto value = pair(at::ones({}), at::ones({}));
       const at::Tensor& one = value;
       (void)one;
     },
     kArgument, errors::kComponent, {"as one value outside of a replica"}},
    {"PerReplicaOfTooFewComponents", [](World& w) { w.a.run([](const at::Tensor&) {}, PerReplica<at::Tensor>({at::ones({})})); }, kArgument,
     errors::kComponent, {"PerReplica of 1 component", "too few for 2 local replicas"}},
    {"PerReplicaOfTooManyComponents",
     [](World& w) { w.a.run([](const at::Tensor&) {}, PerReplica<at::Tensor>({at::ones({}), at::ones({}), at::ones({})})); }, kArgument,
     errors::kComponent, {"argument 0 of run holds a PerReplica of 3 components", "2 local replicas"}},
    {"PerReplicaOfTooManyComponentsInAStructure",
     [](World& w) {
       w.a.run([](int, const std::vector<std::pair<int, int>>&) {}, 1, std::vector{std::pair{PerReplica<int>({1, 2, 3}), 7}});
     },
     kArgument, errors::kComponent, {"argument 1 of run holds a PerReplica of 3 components", "2 local replicas"}},
    {"MirroredOfTooFewComponents", [](World& w) { w.a.run([](int) {}, Mirrored<int>({1})); }, kArgument, errors::kComponent,
     {"argument 0 of run holds a Mirrored of 1 component", "too few for 2 local replicas"}},
    {"NestOfTooManyComponents",
     [](World& w) { w.a.run([](const Nest&) {}, Nest::list({7, Nest::per_replica({1, 2, 3})})); }, kArgument, errors::kComponent,
     {"argument 0 of run holds a PerReplica of 3 components", "2 local replicas"}},
    {"DevicesOfTheDefaultStrategy", [](World&) { default_strategy().extended().parameter_devices(); }, kPrecondition, errors::kWrongContext,
     {"parameter_devices", "MirroredStrategy"}},
    {"BackwardOutsideOfTheRun",
     [](World& w) {
       const auto results = w.a.run([] { return get_replica_context().all_reduce(ReduceOp::Sum, at::ones({2}).requires_grad_()); });
       results[0].sum().backward();
     },
     kPrecondition, errors::kWrongContext, {"outside of its strategy's replicas"}},
    {"BackwardAfterTheStrategyIsGone",
     [](World&) {
       auto gone = std::make_unique<MirroredStrategy>(on_devices(2));
       const auto results = gone->run([] { return get_replica_context().all_gather(at::ones({2}).requires_grad_(), 0); });
       gone.reset();
       results[1].sum().backward();
     },
     kPrecondition, errors::kMixedStrategies, {"outlived its strategy"}},
    {"ManualSeedInsideAReplica", [](World& w) { w.in_replicas([](auto&) { if (my_id() == 1) at::manual_seed(99); }); },
     kPrecondition, errors::kSeedInsideRun, {"manual_seed", ".seed"}},
    {"ManualSeedInsideAReplicaWithTheSeedThatWasThere",
     [](World& w) {
       at::rand({3});
       w.in_replicas([](auto&) { if (my_id() == 1) at::manual_seed(at::detail::getDefaultCPUGenerator().current_seed()); });
     },
     kPrecondition, errors::kSeedInsideRun, {"manual_seed"}},
    {"ManualSeedInsideAReplicaWithTheSeedThatWasJustSet",
     [](World& w) {
       at::manual_seed(5);
       w.in_replicas([](auto&) { if (my_id() == 1) at::manual_seed(5); });
     },
     kPrecondition, errors::kSeedInsideRun, {"manual_seed", "set_seed"}},
};
// clang-format on

// clang-format off
const Misuse kMixtures[] = {
    {"ScopeInsideAnotherScope",
     [](World& w) {
       const auto outer = w.a.scope();
       const auto inner = w.b.scope();
     },
     kPrecondition, errors::kMixedStrategies, {"two strategies cannot be mixed", "leave that scope"}},
    {"DefaultScopeInsideAScope",
     [](World& w) {
       const auto outer = w.a.scope();
       const auto inner = default_strategy().scope();
     },
     kPrecondition, errors::kMixedStrategies, {"inside that of another"}},
    {"RunOfAnotherInsideAScope",
     [](World& w) {
       const auto outer = w.a.scope();
       w.b.run([] {});
     },
     kPrecondition, errors::kMixedStrategies, {"two strategies cannot be mixed"}},
    {"RunOfAnotherInsideAReplica", [](World& w) { w.in_replicas([&](auto&) { w.b.run([] {}); }); }, kPrecondition, errors::kMixedStrategies,
     {"two strategies cannot be mixed"}},
    {"RunOfAnotherInsideAMergeFunction",
     [](World& w) { w.in_replicas([&](auto& r) { r.merge_call([&](Strategy&) { w.b.run([] {}); }); }); }, kPrecondition,
     errors::kMixedStrategies, {"two strategies cannot be mixed"}},
    {"ReduceInsideTheDefaultStrategysRun",
     [](World& w) { default_strategy().run([&] { w.a.reduce(ReduceOp::Sum, pair(at::ones({}), at::ones({}))); }); }, kPrecondition,
     errors::kWrongContext, {"needs the scope of its strategy", "scope()"}},
    {"AssignInsideAnotherScope",
     [](World& w) {
       const auto scope = w.a.scope();
       w.foreign.assign(1);
     },
     kPrecondition, errors::kMixedStrategies, {"two strategies cannot be mixed"}},
    {"ReadInsideAnotherRun", [](World& w) { w.in_replicas([&](auto&) { w.foreign.read(); }); }, kPrecondition, errors::kMixedStrategies,
     {"two strategies cannot be mixed"}},
    {"UpdateOfAForeignVariable", [](World& w) { w.a.extended().update(w.foreign, [](const at::Tensor&) {}); }, kArgument, errors::kMixedStrategies,
     {"needs a variable of this strategy", "'foreign'"}},
    {"UpdateOfAPlainVariable", [](World& w) { w.a.extended().update(w.plain, [](const at::Tensor&) {}); }, kArgument, errors::kMixedStrategies,
     {"'plain'"}},
    {"UpdateInsideAnotherRun", [](World& w) { w.in_replicas([&](auto&) { w.b.extended().update(w.foreign, [](const at::Tensor&) {}); }); },
     kPrecondition, errors::kMixedStrategies, {"two strategies cannot be mixed"}},
    {"ReduceOfAForeignVariable", [](World& w) { w.a.reduce(ReduceOp::Mean, w.foreign); }, kArgument, errors::kMixedStrategies, {"'foreign'"}},
    {"ColocateOutsideOfTheScope", [](World& w) { const auto colocated = w.a.extended().colocate_vars_with(w.sum); }, kPrecondition,
     errors::kWrongContext, {"needs the scope of its strategy", "scope()"}},
    {"ColocateWithAForeignVariable",
     [](World& w) {
       const auto scope = w.a.scope();
       const auto colocated = w.a.extended().colocate_vars_with(w.foreign);
     },
     kArgument, errors::kMixedStrategies, {"needs a variable of this strategy", "'foreign'"}},
    {"ReadOfAVariableThatOutlivedItsStrategy",
     [](World&) {
       auto gone = std::make_unique<MirroredStrategy>(on_devices(2));
       const Variable orphan = gone->make_variable(at::zeros({}), {.name = "orphan"});
       gone.reset();
       orphan.read();
     },
     kPrecondition, errors::kMixedStrategies, {"'orphan'", "outlived its strategy", "keep the strategy"}},
    {"AssignToAVariableThatOutlivedItsStrategy",
     [](World&) {
       auto gone = std::make_unique<MirroredStrategy>(on_devices(2));
       Variable orphan = gone->make_variable(at::zeros({}), {.name = "orphan"});
       gone.reset();
       orphan.assign_add(1);
     },
     kPrecondition, errors::kMixedStrategies, {"'orphan'", "outlived its strategy"}},
};
// clang-format on

INSTANTIATE_TEST_SUITE_P(Contexts, MisuseTest, testing::ValuesIn(kContexts), misuse_name);
INSTANTIATE_TEST_SUITE_P(Mixtures, MisuseTest, testing::ValuesIn(kMixtures), misuse_name);

/// Sets TF_CONFIG while it lives.
struct TfConfig {
  explicit TfConfig(const char* value) { ::setenv("TF_CONFIG", value, 1); }
  ~TfConfig() { ::unsetenv("TF_CONFIG"); }
};

// These tests are linked without Lockstep::cluster.
TEST(WithoutTheClusterComponent, SeveralWorkersAreAnErrorThatNamesIt) {
  const TfConfig config(
      R"({"cluster": {"worker": ["host0:2222", "host1:2222"]}, "task": {"type": "worker", "index": 1}})");
  const SeenError seen = error_of([] { MultiWorkerMirroredStrategy strategy({.devices = test_devices(1)}); });
  EXPECT_EQ(to_string(seen.code), to_string(Code::Unimplemented));
  EXPECT_EQ(seen.number, errors::kNotAvailable);
  for (const char* fragment : {"2 workers", "worker 1 (host1:2222)"})
    EXPECT_NE(seen.text.find(fragment), std::string::npos) << seen.text;
  for (const char* call : {"-DLOCKSTEP_CLUSTER=ON", "find_package(Lockstep COMPONENTS cluster)", "Lockstep::cluster"})
    EXPECT_NE(seen.parts.help.find(call), std::string::npos) << seen.text;
}

TEST(WithoutTheClusterComponent, OptionsThatNoWorkerCanJoinWithAreRefused) {
  const TfConfig config(
      R"({"cluster": {"worker": ["host0:2222", "host1:2222"]}, "task": {"type": "worker", "index": 1}})");
  for (const auto& options :
       {MultiWorkerOptions{.devices = test_devices(1), .data_port = 70000},
        MultiWorkerOptions{.devices = test_devices(1), .data_port = -1},
        MultiWorkerOptions{.devices = test_devices(1), .join_seconds = -1},
        MultiWorkerOptions{.devices = test_devices(1), .join_seconds = std::numeric_limits<double>::quiet_NaN()}}) {
    const SeenError seen = error_of([&] { MultiWorkerMirroredStrategy strategy(options); });
    EXPECT_EQ(seen.number, errors::kBadOption) << seen.text;
    EXPECT_NE(seen.text.find("data_port must be 0 to 65535 and join_seconds >= 0"), std::string::npos) << seen.text;
  }
}

TEST(WithoutTheClusterComponent, OneWorkerTrains) {
  for (const char* config : {"{}", R"({"cluster": {"worker": ["host0:2222"]}, "task": {"type": "worker", "index": 0}})",
                             R"({"cluster": {"worker": ["host0:2222", "host1:2222"], "evaluator": ["host2:2222"]},
                                 "task": {"type": "evaluator", "index": 0}})"}) {
    const TfConfig set(config);
    MultiWorkerMirroredStrategy strategy({.devices = test_devices(2)});
    EXPECT_EQ(strategy.num_workers(), 1) << config;
    EXPECT_TRUE(strategy.extended().experimental_between_graph()) << config;
    EXPECT_EQ(strategy.reduce(ReduceOp::Sum, strategy.run([] { return 1; })), 2) << config;
  }
}

}  // namespace
}  // namespace lockstep
