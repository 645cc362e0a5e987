#include <ATen/CPUGeneratorImpl.h>
#include <ATen/Context.h>
#include <ATen/ops/full.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/rand.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/zeros.h>
#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <limits>
#include <memory>
#include <ostream>
#include <string>
#include <vector>

#include "lockstep/strategy/default_strategy.h"
#include "lockstep/strategy/test_support.h"

// Every wrong use that we know of: what is thrown, with which number and words. Nothing may end the process, and after
// each mistake the strategy works as before.
namespace lockstep {
namespace {

using namespace std::chrono_literals;

/// Two strategies and their variables, for mistakes to be made with.
struct World {
  MirroredStrategy a{on_cpus(2)};
  MirroredStrategy b{on_cpus(2)};
  MirroredStrategy strict{{.devices = cpus(2), .strict = true}};
  Variable none = a.make_variable(at::zeros({2}), {.name = "none"});
  Variable sum = a.make_variable(at::zeros({2}), {.name = "sum", .aggregation = Aggregation::Sum});
  Variable mean = a.make_variable(at::zeros({2}), {.name = "mean", .aggregation = Aggregation::Mean});
  Variable first = a.make_variable(at::zeros({2}), {.name = "first", .aggregation = Aggregation::OnlyFirstReplica});
  Variable table = a.make_variable(at::zeros({4, 2}), {.name = "table", .aggregation = Aggregation::Sum});
  Variable count = a.make_variable(at::zeros({}, at::kLong), {.name = "count"});
  Variable byte = a.make_variable(at::zeros({}, at::kChar), {.name = "byte"});
  Variable total = a.make_variable(at::zeros({2}), {.name = "total", .synchronization = Synchronization::OnRead, .aggregation = Aggregation::Sum});
  Variable silent = a.make_variable(at::zeros({2}), {.name = "silent", .synchronization = Synchronization::OnRead});
  Variable foreign = b.make_variable(at::zeros({2}), {.name = "foreign", .aggregation = Aggregation::Sum});
  Variable guarded = strict.make_variable(at::zeros({2}), {.name = "guarded"});
  Variable plain{at::zeros({2}), {.name = "plain"}};

  /// Replica 0 does one thing, the other one another.
  template <class F, class G>
  void split(F&& zero, G&& one) {
    a.run([&] { my_id() == 0 ? zero(get_replica_context()) : one(get_replica_context()); });
  }
  template <class F>
  void in_replicas(F&& f) {
    a.run([&] { f(get_replica_context()); });
  }
};

struct Misuse {
  const char* name;
  std::function<void(World&)> call;
  Code code;
  int number;
  std::vector<const char*> fragments;
};

void PrintTo(const Misuse& misuse, std::ostream* out) { *out << misuse.name; }

constexpr auto kArgument = Code::InvalidArgument;
constexpr auto kPrecondition = Code::FailedPrecondition;

PerReplica<at::Tensor> pair(const at::Tensor& x, const at::Tensor& y) { return PerReplica<at::Tensor>({x, y}); }
IndexedSlices rows(std::vector<std::int64_t> indices, const at::Tensor& values) { return {values, at::tensor(indices), {4, 2}}; }

const Misuse kContexts[] = {
    {"RunInsideAReplica", [](World& w) { w.in_replicas([&](auto&) { w.a.run([] {}); }); }, kPrecondition, errors::kWrongContext,
     {"Method requires being in cross-replica context", "merge_call", "on replica 0"}},
    {"ReduceInsideAReplica", [](World& w) { w.in_replicas([&](auto&) { w.a.reduce(ReduceOp::Sum, pair(at::ones({}), at::ones({}))); }); },
     kPrecondition, errors::kWrongContext, {"cross-replica context", "all_reduce"}},
    {"GatherInsideAReplica", [](World& w) { w.in_replicas([&](auto&) { w.a.gather(pair(at::ones({1}), at::ones({1})), 0); }); },
     kPrecondition, errors::kWrongContext, {"cross-replica context", "all_gather"}},
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
    {"RestoreInsideAReplica", [](World& w) { w.in_replicas([&](auto&) { w.sum.restore(at::ones({2})); }); }, kPrecondition,
     errors::kWrongContext, {"cross-replica context"}},
    {"ReplicaContextOutsideOfReplicas",
     [](World& w) {
       const auto scope = w.a.scope();
       get_replica_context();
     },
     kPrecondition, errors::kWrongContext, {"no replica context", "inside the function given to run"}},
    {"ReplicaContextInsideAMergeFunction", [](World& w) { w.in_replicas([](auto& r) { r.merge_call([](Strategy&) { get_replica_context(); }); }); },
     kPrecondition, errors::kWrongContext, {"no replica context"}},
    {"AStoredContextAfterTheRun",
     [](World& w) {
       ReplicaContext* stored = nullptr;
       w.in_replicas([&](auto& r) { stored = my_id() == 1 ? &r : stored; });
       stored->all_reduce(ReduceOp::Sum, at::ones({}));
     },
     kPrecondition, errors::kWrongContext, {"Need to be inside `call_for_each_replica()`", "strategy.run"}},
    {"AStoredContextInsideAScope",
     [](World& w) {
       const auto scope = w.a.scope();
       w.a.replica_context(0).merge_call([](Strategy&) {});
     },
     kPrecondition, errors::kWrongContext, {"Need to be inside `call_for_each_replica()`"}},
    {"TheContextOfAnotherReplica", [](World& w) { w.in_replicas([&](auto&) { w.a.replica_context(0).all_gather(at::ones({1}), 0); }); },
     kPrecondition, errors::kWrongContext, {"Mismatching ReplicaContext.", "get_replica_context()"}},
    {"TheContextOfAnotherStrategy", [](World& w) { w.in_replicas([&](auto&) { w.b.replica_context(0).merge_call([](Strategy&) {}); }); },
     kPrecondition, errors::kMixedStrategies, {"Mismatching tf.distribute.Strategy objects"}},
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
     kPrecondition, errors::kWrongContext, {"Need to be inside `call_for_each_replica()`"}},
    {"PerReplicaOutsideOfReplicas",
     [](World&) {
       const auto value = pair(at::ones({}), at::ones({}));
       const at::Tensor& one = value;
       (void)one;
     },
     kArgument, errors::kComponent, {"not inside a replica context"}},
    {"PerReplicaOfTooFewComponents", [](World& w) { w.a.run([](const at::Tensor&) {}, PerReplica<at::Tensor>({at::ones({})})); }, kArgument,
     errors::kComponent, {"1"}},
    {"DevicesOfTheDefaultStrategy", [](World&) { default_strategy().extended().parameter_devices(); }, kPrecondition, errors::kWrongContext,
     {"parameter_devices", "MirroredStrategy"}},
    {"BackwardOutsideOfTheRun",
     [](World& w) {
       const auto results = w.a.run([] { return get_replica_context().all_reduce(ReduceOp::Sum, at::ones({2}).requires_grad_()); });
       results[0].sum().backward();
     },
     kPrecondition, errors::kWrongContext, {"Need to be inside `call_for_each_replica()`"}},
    {"BackwardAfterTheStrategyIsGone",
     [](World&) {
       auto gone = std::make_unique<MirroredStrategy>(on_cpus(2));
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
};

const Misuse kMixtures[] = {
    {"ScopeInsideAnotherScope",
     [](World& w) {
       const auto outer = w.a.scope();
       const auto inner = w.b.scope();
     },
     kPrecondition, errors::kMixedStrategies, {"Mixing different tf.distribute.Strategy objects", "leave that scope"}},
    {"DefaultScopeInsideAScope",
     [](World& w) {
       const auto outer = w.a.scope();
       const auto inner = default_strategy().scope();
     },
     kPrecondition, errors::kMixedStrategies, {"Must not nest tf.distribute.Strategy scopes."}},
    {"RunOfAnotherInsideAScope",
     [](World& w) {
       const auto outer = w.a.scope();
       w.b.run([] {});
     },
     kPrecondition, errors::kMixedStrategies, {"Mixing different"}},
    {"RunOfAnotherInsideAReplica", [](World& w) { w.in_replicas([&](auto&) { w.b.run([] {}); }); }, kPrecondition, errors::kMixedStrategies,
     {"Mixing different"}},
    {"RunOfAnotherInsideAMergeFunction",
     [](World& w) { w.in_replicas([&](auto& r) { r.merge_call([&](Strategy&) { w.b.run([] {}); }); }); }, kPrecondition,
     errors::kMixedStrategies, {"Mixing different"}},
    {"ReduceInsideTheDefaultStrategysRun",
     [](World& w) { default_strategy().run([&] { w.a.reduce(ReduceOp::Sum, pair(at::ones({}), at::ones({}))); }); }, kPrecondition,
     errors::kWrongContext, {"Need to be inside", "scope()"}},
    {"AssignInsideAnotherScope",
     [](World& w) {
       const auto scope = w.a.scope();
       w.foreign.assign(1);
     },
     kPrecondition, errors::kMixedStrategies, {"Mixing different"}},
    {"ReadInsideAnotherRun", [](World& w) { w.in_replicas([&](auto&) { w.foreign.read(); }); }, kPrecondition, errors::kMixedStrategies,
     {"Mixing different"}},
    {"UpdateOfAForeignVariable", [](World& w) { w.a.extended().update(w.foreign, [](const at::Tensor&) {}); }, kArgument, errors::kMixedStrategies,
     {"must only be passed a variable created in this", "'foreign'"}},
    {"UpdateOfAPlainVariable", [](World& w) { w.a.extended().update(w.plain, [](const at::Tensor&) {}); }, kArgument, errors::kMixedStrategies,
     {"'plain'"}},
    {"UpdateInsideAnotherRun", [](World& w) { w.in_replicas([&](auto&) { w.b.extended().update(w.foreign, [](const at::Tensor&) {}); }); },
     kPrecondition, errors::kMixedStrategies, {"Mixing different"}},
    {"ReduceOfAForeignVariable", [](World& w) { w.a.reduce(ReduceOp::Mean, w.foreign); }, kArgument, errors::kMixedStrategies, {"'foreign'"}},
    {"ColocateOutsideOfTheScope", [](World& w) { const auto colocated = w.a.extended().colocate_vars_with(w.sum); }, kPrecondition,
     errors::kWrongContext, {"Need to be inside", "scope()"}},
    {"ColocateWithAForeignVariable",
     [](World& w) {
       const auto scope = w.a.scope();
       const auto colocated = w.a.extended().colocate_vars_with(w.foreign);
     },
     kArgument, errors::kMixedStrategies, {"must only be passed a variable created in this", "'foreign'"}},
    {"ReadOfAVariableThatOutlivedItsStrategy",
     [](World&) {
       auto gone = std::make_unique<MirroredStrategy>(on_cpus(2));
       const Variable orphan = gone->make_variable(at::zeros({}), {.name = "orphan"});
       gone.reset();
       orphan.read();
     },
     kPrecondition, errors::kMixedStrategies, {"'orphan'", "outlived its strategy", "keep the strategy"}},
    {"AssignToAVariableThatOutlivedItsStrategy",
     [](World&) {
       auto gone = std::make_unique<MirroredStrategy>(on_cpus(2));
       Variable orphan = gone->make_variable(at::zeros({}), {.name = "orphan"});
       gone.reset();
       orphan.assign_add(1);
     },
     kPrecondition, errors::kMixedStrategies, {"'orphan'", "outlived its strategy"}},
};

const Misuse kMeetings[] = {
    {"FewerMergeCallsOnReplicaZero", [](World& w) { w.split([](auto&) {}, [](auto& r) { r.merge_call([](Strategy&) {}); }); }, kPrecondition,
     errors::kUnequalMeetings, {"different number of merge_call", "replica 0 has ended"}},
    {"FewerMergeCallsOnReplicaOne", [](World& w) { w.split([](auto& r) { r.merge_call([](Strategy&) {}); }, [](auto&) {}); }, kPrecondition,
     errors::kUnequalMeetings, {"different number of merge_call", "replica 1 has ended"}},
    {"FewerAllReduces", [](World& w) { w.split([](auto& r) { r.all_reduce(ReduceOp::Sum, at::ones({})); }, [](auto&) {}); }, kPrecondition,
     errors::kUnequalMeetings, {"different number of", "all_reduce"}},
    {"AllReduceHereAllGatherThere",
     [](World& w) { w.split([](auto& r) { r.all_reduce(ReduceOp::Sum, at::ones({1})); }, [](auto& r) { r.all_gather(at::ones({1}), 0); }); },
     kPrecondition, errors::kDifferentCollective, {"different operations", "all_reduce", "all_gather"}},
    {"AllReduceHereMergeThere",
     [](World& w) { w.split([](auto& r) { r.all_reduce(ReduceOp::Sum, at::ones({1})); }, [](auto& r) { r.merge_call([](Strategy&) {}); }); },
     kPrecondition, errors::kDifferentCollective, {"different operations", "all_reduce", "merge_call"}},
    {"MergeHereAllReduceThere",
     [](World& w) { w.split([](auto& r) { r.merge_call([](Strategy&) {}); }, [](auto& r) { r.all_reduce(ReduceOp::Sum, at::ones({1})); }); },
     kPrecondition, errors::kDifferentCollective, {"different operations", "all_reduce", "merge_call"}},
    {"SumHereMeanThere",
     [](World& w) { w.in_replicas([](auto& r) { r.all_reduce(my_id() == 0 ? ReduceOp::Sum : ReduceOp::Mean, at::ones({1})); }); }, kArgument,
     errors::kDifferentCollective, {"different reductions", "SUM", "MEAN"}},
    {"DifferentAxes", [](World& w) { w.in_replicas([](auto& r) { r.all_gather(at::ones({1, 1}), my_id()); }); }, kArgument,
     errors::kDifferentCollective, {"different axes"}},
    {"DifferentFunctionsToMerge",
     [](World& w) {
       w.split([](auto& r) { r.merge_call([](Strategy&, const PerReplica<int>&) {}, 1); },
               [](auto& r) { r.merge_call([](Strategy&, const PerReplica<std::string>&) {}, std::string("one")); });
     },
     kArgument, errors::kStructure, {"merge_call", "replica 1"}},
    {"DifferentVariablesToAssign", [](World& w) { w.in_replicas([&](auto&) { (my_id() == 0 ? w.sum : w.mean).assign(at::ones({2})); }); },
     kPrecondition, errors::kDifferentCollective, {"different variables", "'sum'", "'mean'"}},
    {"AssignHereAddThere",
     [](World& w) { w.in_replicas([&](auto&) { my_id() == 0 ? w.sum.assign(at::ones({2})) : w.sum.assign_add(at::ones({2})); }); },
     kPrecondition, errors::kDifferentCollective, {"assign", "assign_add", "'sum'"}},
    {"DifferentVariablesToScatter",
     [](World& w) {
       Variable other = w.a.make_variable(at::zeros({4, 2}), {.name = "other", .aggregation = Aggregation::Sum});
       w.in_replicas([&](auto&) { (my_id() == 0 ? w.table : other).scatter_add(rows({0}, at::ones({1, 2}))); });
     },
     kPrecondition, errors::kDifferentCollective, {"different variables", "'table'", "'other'"}},
    {"ScatterAddHereScatterSubThere",
     [](World& w) {
       w.in_replicas([&](auto&) {
         const auto delta = rows({0}, at::ones({1, 2}));
         my_id() == 0 ? w.table.scatter_add(delta) : w.table.scatter_sub(delta);
       });
     },
     kPrecondition, errors::kDifferentCollective, {"scatter_add", "scatter_sub", "'table'"}},
    {"DifferentNamesToCreate",
     [](World& w) { w.in_replicas([](auto&) { const Variable v(at::ones({}), {.name = my_id() == 0 ? "left" : "right"}); }); }, kPrecondition,
     errors::kVariableName, {"Tried to create variable 'right' with mismatching name", "CPU:1", "'left'", "same order"}},
    {"ATimeout",
     [](World& w) {
       const LoggedLines quiet;
       w.in_replicas([](auto& r) {
         if (my_id() == 1) std::this_thread::sleep_for(60ms);
         r.all_reduce(ReduceOp::Sum, at::ones({}), {.timeout_seconds = 0.01});
       });
     },
     Code::DeadlineExceeded, errors::kTimeout, {"timeout", "timeout_seconds"}},
    {"ATimeoutOfAMergeCall",
     [](World&) {
       const LoggedLines quiet;
       MirroredStrategy hasty({.devices = cpus(2), .communication = {.timeout_seconds = 0.01}});
       hasty.run([] {
         if (my_id() == 1) std::this_thread::sleep_for(60ms);
         get_replica_context().merge_call([](Strategy&) {});
       });
     },
     Code::DeadlineExceeded, errors::kTimeout, {"merge_call", "timeout_seconds"}},
};

const Misuse kValues[] = {
    {"UnequalLengthsToAllReduce",
     [](World& w) { w.in_replicas([](auto& r) { r.all_reduce(ReduceOp::Sum, std::vector(my_id() == 0 ? 1 : 2, at::ones({}))); }); }, kArgument,
     errors::kStructure, {"Values to regroup had different lengths", "same structure"}},
    {"UnequalKeysToAllReduce",
     [](World& w) {
       w.in_replicas([](auto& r) { r.all_reduce(ReduceOp::Sum, std::map<std::string, at::Tensor>{{my_id() == 0 ? "a" : "b", at::ones({})}}); });
     },
     kArgument, errors::kStructure, {"structure"}},
    {"UnequalLengthsToReduce",
     [](World& w) { w.a.reduce(ReduceOp::Sum, PerReplica<std::vector<at::Tensor>>({{at::ones({})}, {at::ones({}), at::ones({})}})); }, kArgument,
     errors::kStructure, {"different structures", "replica 1"}},
    {"UnequalShapesToReduce", [](World& w) { w.a.reduce(ReduceOp::Sum, pair(at::ones({2}), at::ones({3}))); }, kArgument, errors::kShape,
     {"Shape mismatch", "[2]", "[3]", "axis"}},
    {"UnequalShapesToAllReduce", [](World& w) { w.in_replicas([](auto& r) { r.all_reduce(ReduceOp::Sum, at::ones({2 + my_id()})); }); }, kArgument,
     errors::kShape, {"Shape mismatch", "[2]", "[3]", "all_gather"}},
    {"UnequalComplexShapesToAllReduce",
     [](World& w) { w.in_replicas([](auto& r) { r.all_reduce(ReduceOp::Sum, at::ones({2 + my_id()}, at::kComplexFloat)); }); }, kArgument,
     errors::kShape, {"Shape mismatch", "[2]", "[3]"}},
    {"UnequalTypesToReduce", [](World& w) { w.a.reduce(ReduceOp::Sum, pair(at::ones({2}), at::ones({2}, at::kDouble))); }, kArgument,
     errors::kDtype, {"element types", ".to("}},
    {"UnequalTypesToAllReduce",
     [](World& w) { w.in_replicas([](auto& r) { r.all_reduce(ReduceOp::Sum, at::ones({2}, my_id() == 0 ? at::kFloat : at::kInt)); }); }, kArgument,
     errors::kDtype, {"Float", "Int"}},
    {"FloatHereComplexThere",
     [](World& w) { w.in_replicas([](auto& r) { r.all_reduce(ReduceOp::Sum, at::ones({2}, my_id() == 0 ? at::kFloat : at::kComplexFloat)); }); },
     kArgument, errors::kDtype, {"Float", "ComplexFloat"}},
    {"TypesInAnotherOrder",
     [](World& w) {
       w.in_replicas([](auto& r) {
         std::vector<at::Tensor> values{at::ones({2}), at::ones({2}, at::kComplexFloat)};
         if (my_id() == 1) std::swap(values[0], values[1]);
         r.all_reduce(ReduceOp::Sum, values);
       });
     },
     kArgument, errors::kDtype, {"Float", "ComplexFloat"}},
    {"UnequalTypesToAllGather",
     [](World& w) { w.in_replicas([](auto& r) { r.all_gather(at::ones({2}, my_id() == 0 ? at::kFloat : at::kInt), 0); }); }, kArgument,
     errors::kDtype, {"Float", "Int"}},
    {"UnequalRowsToAllGather", [](World& w) { w.in_replicas([](auto& r) { r.all_gather(at::ones({1, 2 + my_id()}), 0); }); }, kArgument,
     errors::kShape, {"Shape mismatch", "axis 0"}},
    {"ScalarsToAllGather", [](World& w) { w.in_replicas([](auto& r) { r.all_gather(at::ones({}), 0); }); }, kArgument, errors::kShape,
     {"scalars", "unsqueeze"}},
    {"ScalarsWithGradientsToAllGather", [](World& w) { w.in_replicas([](auto& r) { r.all_gather(at::ones({}).requires_grad_(), 0); }); },
     kArgument, errors::kShape, {"scalars"}},
    {"AnAxisThatIsNotThereToAllGather", [](World& w) { w.in_replicas([](auto& r) { r.all_gather(at::ones({1}).requires_grad_(), 3); }); }, kArgument,
     errors::kShape, {"in the range [-1, 1)", "3"}},
    {"AnAxisThatIsNotThereToReduce", [](World& w) { w.a.reduce(ReduceOp::Mean, pair(at::ones({2}), at::ones({2})), 1); }, kArgument, errors::kShape,
     {"Invalid reduction dimension 1", "[-1, 1)"}},
    {"AnAxisTwice", [](World& w) { w.a.reduce(ReduceOp::Sum, pair(at::ones({2, 2}), at::ones({2, 2})), {0, -2}); }, kArgument, errors::kShape,
     {"duplicate"}},
    {"BoolsToReduce", [](World& w) { w.a.reduce(ReduceOp::Sum, pair(at::ones({2}, at::kBool), at::ones({2}, at::kBool))); }, kArgument,
     errors::kDtype, {"bool has no sum", "convert"}},
    {"BoolsToAllReduce", [](World& w) { w.in_replicas([](auto& r) { r.all_reduce(ReduceOp::Sum, at::ones({2}, at::kBool)); }); }, kArgument,
     errors::kDtype, {"bool has no sum", "convert"}},
    {"TextToReduce", [](World& w) { w.a.reduce(ReduceOp::Sum, PerReplica<std::string>({"a", "b"})); }, kArgument, errors::kNotReducible, {"cannot be reduced"}},
    {"UndefinedFirstToReduce", [](World& w) { w.a.reduce(ReduceOp::Sum, pair({}, at::ones({}))); }, kArgument, errors::kNotReducible,
     {"undefined tensor"}},
    {"UndefinedSecondToReduce", [](World& w) { w.a.reduce(ReduceOp::Sum, pair(at::ones({}), {})); }, kArgument, errors::kNotReducible,
     {"undefined tensor", "component 1"}},
    {"UndefinedToReduceAlongAnAxis", [](World& w) { w.a.reduce(ReduceOp::Sum, pair(at::ones({1}), {}), 0); }, kArgument, errors::kNotReducible,
     {"undefined tensor"}},
    {"UndefinedToAllReduce", [](World& w) { w.in_replicas([](auto& r) { r.all_reduce(ReduceOp::Sum, my_id() == 0 ? at::ones({}) : at::Tensor()); }); },
     kArgument, errors::kNotReducible, {"undefined tensor", "replica 1"}},
    {"UndefinedToAllGather", [](World& w) { w.in_replicas([](auto& r) { r.all_gather(my_id() == 0 ? at::ones({1}) : at::Tensor(), 0); }); }, kArgument,
     errors::kShape, {"component 1", "undefined tensor"}},
    {"UndefinedFirstToAllGather", [](World& w) { w.in_replicas([](auto& r) { r.all_gather(my_id() == 1 ? at::ones({1}) : at::Tensor(), 0); }); },
     kArgument, errors::kShape, {"component 0", "undefined tensor"}},
    {"UndefinedToGather", [](World& w) { w.a.gather(pair({}, at::ones({1})), 0); }, kArgument, errors::kShape, {"undefined tensor"}},
    {"UndefinedToBroadcast", [](World& w) { w.a.extended().broadcast_to(at::Tensor(), "cpu:0"); }, kArgument, errors::kNotReducible, {"undefined tensor"}},
    {"AnEmptyPerReplica", [](World& w) { w.a.reduce(ReduceOp::Sum, PerReplica<at::Tensor>(std::vector<at::Tensor>{})); }, kArgument,
     errors::kComponent, {"0 components"}},
    {"SumOfAMirroredValue", [](World& w) { w.a.reduce(ReduceOp::Sum, Mirrored<at::Tensor>({at::ones({}), at::ones({})})); }, kArgument,
     errors::kNotReducible, {"MEAN", "num_replicas_in_sync"}},
    {"SumOfAPlainValue", [](World& w) { w.a.reduce(ReduceOp::Sum, at::ones({})); }, kArgument, errors::kNotReducible,
     {"A non-DistributedValues value", "cannot be reduced", "PerReplica"}},
    {"AnUnknownReduction", [](World& w) { w.a.reduce(static_cast<ReduceOp>(9), pair(at::ones({}), at::ones({}))); }, kArgument, errors::kBadOption,
     {"ReduceOp", "9", "Sum or Mean"}},
    {"AnUnknownAllReduction", [](World& w) { w.in_replicas([](auto& r) { r.all_reduce(static_cast<ReduceOp>(9), at::ones({})); }); }, kArgument,
     errors::kBadOption, {"ReduceOp", "9"}},
    {"AnUnknownReductionToADevice", [](World& w) { w.a.extended().reduce_to(static_cast<ReduceOp>(-1), pair(at::ones({}), at::ones({})), "cpu:0"); },
     kArgument, errors::kBadOption, {"ReduceOp", "-1"}},
    {"SparseRowsToGather", [](World& w) { w.a.gather(PerReplica<IndexedSlices>({rows({0}, at::ones({1, 2})), rows({0}, at::ones({1, 2}))}), 0); },
     Code::Unimplemented, errors::kNotAvailable, {"gather does not support IndexedSlices", "to_dense"}},
    {"SparseRowsWithoutIndicesToReduce",
     [](World& w) { w.a.reduce(ReduceOp::Sum, PerReplica<IndexedSlices>({rows({0}, at::ones({1, 2})), rows({0, 1}, at::ones({1, 2}))})); }, kArgument,
     errors::kShape, {"one index per row"}},
    {"SparseRowsOfUnequalWidthToAllReduce",
     [](World& w) {
       w.in_replicas([](auto& r) {
         IndexedSlices mine = rows({0}, at::ones({1, 2 + my_id()}));
         mine.dense_shape.clear();
         r.all_reduce(ReduceOp::Sum, mine);
       });
     },
     kArgument, errors::kShape, {"Shape mismatch", "[2]", "[3]"}},
    {"SparseRowsOfUnequalTypesToReduce",
     [](World& w) { w.a.reduce(ReduceOp::Sum, PerReplica<IndexedSlices>({rows({0}, at::ones({1, 2})), rows({0}, at::ones({1, 2}, at::kDouble))})); },
     kArgument, errors::kDtype, {"Float", "Double"}},
    {"SparseRowsAlongAnAxis",
     [](World& w) { w.a.reduce(ReduceOp::Sum, PerReplica<IndexedSlices>({rows({0}, at::ones({1, 2})), rows({0}, at::ones({1, 2}))}), 0); }, kArgument,
     errors::kNotReducible, {"sparse rows", "to_dense"}},
    {"NoDestination", [](World& w) { w.a.extended().reduce_to(ReduceOp::Sum, pair(at::ones({}), at::ones({})), at::Tensor()); }, kArgument,
     errors::kDestination, {"destinations can not be empty", "name a device"}},
    {"AnEmptyValueAsDestination",
     [](World& w) { w.a.extended().broadcast_to(at::ones({}), PerReplica<at::Tensor>(std::vector<at::Tensor>{})); }, kArgument, errors::kDestination,
     {"destinations can not be empty"}},
    {"TooManyDestinations", [](World& w) { w.a.extended().broadcast_to(at::ones({}), PerReplica<int>({1, 2, 3})); }, kArgument,
     errors::kDestination, {"3 components", "2 replicas"}},
    {"AnUnknownDestination", [](World& w) { w.a.extended().broadcast_to(at::ones({}), "the moon"); }, kArgument, errors::kDevice, {"the moon"}},
    {"ADestinationThatIsNotHere", [](World& w) { w.a.extended().broadcast_to(at::ones({}), "gpu:63"); }, kArgument, errors::kDevice, {"GPU:63"}},
    {"NoDevicesToUpdate", [](World& w) { w.a.extended().update_non_slot({}, [] { return 1; }); }, kArgument, errors::kDestination,
     {"update_non_slot", "non_slot_devices"}},
    {"TooManyDevicesToUpdate", [](World& w) { w.a.extended().update_non_slot(Devices(3, "cpu:0"), [] { return 1; }); }, kArgument,
     errors::kDestination, {"update_non_slot"}},
};

const Misuse kOptions[] = {
    {"NoDevices", [](World&) { MirroredStrategy({.devices = std::vector<std::string>{}}); }, kArgument, errors::kDevice, {"device"}},
    {"ADeviceTwice", [](World&) { MirroredStrategy({.devices = {{"cpu:0", "cpu:0"}}}); }, kArgument, errors::kDevice, {"CPU:0"}},
    {"ADeviceTwiceInOtherWords", [](World&) { MirroredStrategy({.devices = {{"cpu:1", "/device:CPU:1"}}}); }, kArgument,
     errors::kDevice, {"CPU:1"}},
    {"AnUnknownDevice", [](World&) { MirroredStrategy({.devices = {{"toaster:0"}}}); }, kArgument, errors::kDevice, {"toaster", "cpu:"}},
    {"AGpuThatIsNotHere", [](World&) { MirroredStrategy({.devices = {{"gpu:63"}}}); }, kArgument, errors::kDevice, {"GPU:63", "ls::cpus("}},
    {"ANegativeDevice", [](World&) { MirroredStrategy({.devices = {{"cpu:-1"}}}); }, kArgument, errors::kDevice, {"cpu:-1"}},
    {"NoThreads", [](World&) { MirroredStrategy({.devices = cpus(1), .intra_op_threads = 0}); }, kArgument, errors::kBadOption,
     {"intra_op_threads", "0"}},
    {"LessThanNoThreads", [](World&) { MirroredStrategy({.devices = cpus(1), .intra_op_threads = -4}); }, kArgument, errors::kBadOption,
     {"intra_op_threads", "-4"}},
    {"MoreThreadsThanAnyMachineHas", [](World&) { MirroredStrategy({.devices = cpus(1), .intra_op_threads = 1 << 30}); }, kArgument,
     errors::kBadOption, {"intra_op_threads"}},
    {"NegativePacks", [](World&) { MirroredStrategy({.devices = cpus(1), .communication = {.bytes_per_pack = -1}}); }, kArgument,
     errors::kBadOption, {"bytes_per_pack must be >=0"}},
    {"NegativePacksOfOneCall",
     [](World& w) { w.in_replicas([](auto& r) { r.all_reduce(ReduceOp::Sum, at::ones({}), {.bytes_per_pack = -1}); }); }, kArgument,
     errors::kBadOption, {"bytes_per_pack must be >=0"}},
    {"NegativePacksOfAStructure",
     [](World& w) { w.in_replicas([](auto& r) { r.all_reduce(ReduceOp::Sum, std::vector{at::ones({})}, {.bytes_per_pack = -1}); }); }, kArgument,
     errors::kBadOption, {"bytes_per_pack must be >=0"}},
    {"ANegativeTimeout", [](World&) { MirroredStrategy({.devices = cpus(1), .communication = {.timeout_seconds = -0.5}}); }, kArgument,
     errors::kBadOption, {"timeout_seconds", "-0.5"}},
    {"ATimeoutThatIsNoNumber",
     [](World& w) { w.in_replicas([](auto& r) { r.all_gather(at::ones({1}), 0, {.timeout_seconds = std::nan("")}); }); }, kArgument,
     errors::kBadOption, {"timeout_seconds", "nan"}},
    {"AnUnknownImplementation",
     [](World& w) { w.in_replicas([](auto& r) { r.all_reduce(ReduceOp::Sum, at::ones({}), {.implementation = static_cast<Implementation>(9)}); }); },
     kArgument, errors::kBadOption, {"implementation", "9"}},
    {"NegativeNumberOfPacks", [](World&) { NcclAllReduce(-1); }, kArgument, errors::kBadOption, {"num_packs"}},
    {"AnUnknownDeviceToReduceTo", [](World&) { ReductionToOneDevice("the moon"); }, kArgument, errors::kDevice, {"the moon"}},
};

const Misuse kVariables[] = {
    {"NoSynchronization", [](World& w) { w.a.make_variable(at::zeros({}), {.synchronization = Synchronization::None}); }, kArgument,
     errors::kVariableMode, {"`NONE` variable synchronization mode is not supported", "OnRead"}},
    {"AnUnknownSynchronization", [](World& w) { w.a.make_variable(at::zeros({}), {.synchronization = static_cast<Synchronization>(9)}); }, kArgument,
     errors::kVariableMode, {"Invalid variable synchronization mode", "9"}},
    {"AnUnknownAggregation", [](World& w) { w.a.make_variable(at::zeros({}), {.aggregation = static_cast<Aggregation>(-3)}); }, kArgument,
     errors::kVariableMode, {"Invalid variable aggregation mode", "-3"}},
    {"AnUnknownNameOfASynchronization", [](World&) { parse_synchronization("SOMETIMES"); }, kArgument, errors::kVariableMode, {"SOMETIMES", "ON_READ"}},
    {"AnUnknownNameOfAnAggregation", [](World&) { parse_aggregation("MEDIAN"); }, kArgument, errors::kVariableMode, {"MEDIAN", "ONLY_FIRST_REPLICA"}},
    {"MeanOfIntegers", [](World& w) { w.a.make_variable(at::zeros({}, at::kInt), {.aggregation = Aggregation::Mean}); }, kArgument,
     errors::kVariableMode, {"aggregation=MEAN and a non-floating dtype", "int32"}},
    {"NoInitialValue", [](World& w) { w.a.make_variable({}, {.name = "empty"}); }, kArgument, errors::kVariableMode, {"initial value", "'empty'"}},
    {"AssignOfNothing", [](World& w) { w.sum.assign(at::Tensor()); }, kArgument, errors::kVariableAssign, {"undefined tensor", "'sum'"}},
    {"AssignOfNothingInReplicas", [](World& w) { w.in_replicas([&](auto&) { w.sum.assign(at::Tensor()); }); }, kArgument, errors::kVariableAssign,
     {"undefined tensor", "'sum'"}},
    {"AssignOfNothingFromTheFirstReplica", [](World& w) { w.in_replicas([&](auto&) { w.first.assign(at::Tensor()); }); }, kArgument,
     errors::kVariableAssign, {"undefined tensor", "'first'"}},
    {"AssignOfNothingToATotal", [](World& w) { w.total.assign(at::Tensor()); }, kArgument, errors::kVariableAssign, {"undefined tensor", "'total'"}},
    {"AssignOfAnotherShape", [](World& w) { w.sum.assign(at::ones({3})); }, kArgument, errors::kShape, {"Shape mismatch", "[2]", "[3]"}},
    {"AssignOfAnotherShapeToATotal", [](World& w) { w.total.assign(at::ones({3})); }, kArgument, errors::kShape, {"Shape mismatch", "[2]", "[3]"}},
    {"AssignOfANumberToAShape", [](World& w) { w.sum.assign(1); }, kArgument, errors::kShape, {"Shape mismatch", "expand"}},
    {"AssignOfAnotherType", [](World& w) { w.sum.assign(at::ones({2}, at::kDouble)); }, kArgument, errors::kDtype,
     {"Tensor conversion requested dtype", "float64", ".to("}},
    {"AssignOfATypeOfOneReplica",
     [](World& w) { w.in_replicas([&](auto&) { w.mean.assign(at::ones({2}, my_id() == 0 ? at::kFloat : at::kDouble)); }); }, kArgument,
     errors::kDtype, {"Tensor conversion requested dtype"}},
    {"AssignOfAFractionToAnInteger", [](World& w) { w.count.assign(0.5); }, kArgument, errors::kDtype, {"0.5", "does not fit", "int64"}},
    {"AssignOfNanToAnInteger", [](World& w) { w.count.assign(std::nan("")); }, kArgument, errors::kDtype, {"does not fit", "int64"}},
    {"AssignOfAHugeNumberToAnInteger", [](World& w) { w.count.assign(1e30); }, kArgument, errors::kDtype, {"does not fit", "int64"}},
    {"AssignOfAnIntegerThatIsTooLarge", [](World& w) { w.byte.assign(300); }, kArgument, errors::kDtype, {"300", "does not fit", "int8"}},
    {"AssignOfAComplexNumber", [](World& w) { w.a.make_variable(at::zeros({})).assign(c10::Scalar(c10::complex<double>(1, 2))); }, kArgument,
     errors::kDtype, {"does not fit", "float32"}},
    {"SumOfOneObject", [](World& w) { const at::Tensor one = at::ones({2}); w.in_replicas([&](auto&) { w.sum.assign(one); }); }, kArgument,
     errors::kNotReducible, {"A non-DistributedValues value", "same object", "ONLY_FIRST_REPLICA"}},
    {"PerReplicaOfTooFewComponentsToAssign", [](World& w) { w.sum.assign(PerReplica<at::Tensor>({at::ones({2})})); }, kArgument, errors::kComponent,
     {"1"}},
    {"PerReplicaToOneReplica", [](World& w) { const auto both = pair(at::ones({2}), at::ones({2})); w.in_replicas([&](auto&) { w.none.assign(both); }); },
     kArgument, errors::kVariableAssign, {"one replica's component", "get()"}},
    {"PerReplicaToATotal", [](World& w) { w.total.assign(pair(at::ones({2}), at::ones({2}))); }, kArgument, errors::kVariableAssign,
     {"sync-on-read", "inside run"}},
    {"AddToATotalFromOutside", [](World& w) { w.total.assign_add(at::ones({2})); }, kArgument, errors::kVariableAssign,
     {"SyncOnReadVariable does not support `assign_add`", "inside run"}},
    {"ReadWithoutAggregation", [](World& w) { w.silent.read(); }, kArgument, errors::kVariableMode, {"Could not convert from", "values()"}},
    {"HandleFromOutside",
     [](World& w) {
       const auto scope = w.a.scope();
       w.sum.handle();
     },
     kArgument, errors::kComponent, {"is not available outside the replica context", "values()"}},
    {"RestoreOfNothing", [](World& w) { w.total.restore({}); }, kArgument, errors::kVariableAssign, {"undefined tensor", "'total'"}},
    {"RestoreOfAnotherShape", [](World& w) { w.total.restore(at::ones({3})); }, kArgument, errors::kShape, {"Shape mismatch", "'total'"}},
    {"ARowThatIsNotThere", [](World& w) { w.table.scatter_add(rows({1, 4}, at::ones({2, 2}))); }, kArgument, errors::kShape,
     {"indices[1] = 4", "[0, 4)", "'table'"}},
    {"ANegativeRow", [](World& w) { w.in_replicas([&](auto&) { w.table.scatter_sub(rows({-1}, at::ones({1, 2}))); }); }, kArgument, errors::kShape,
     {"indices[0] = -1", "'table'"}},
    {"RowsOfAnotherWidth", [](World& w) { w.table.scatter_mul({at::ones({1, 3}), at::tensor({0}), {}}); }, kArgument, errors::kShape,
     {"Shape mismatch", "'table'"}},
    {"RowsOfAnotherType", [](World& w) { w.table.scatter_add(rows({0}, at::ones({1, 2}, at::kDouble))); }, kArgument, errors::kDtype, {"'table'"}},
    {"RowsOfANumber", [](World& w) { w.count.scatter_add({at::ones({1}, at::kLong), at::tensor({0}), {}}); }, kArgument, errors::kShape,
     {"scalar", "'count'"}},
    {"UndefinedRows", [](World& w) { w.table.scatter_add({}); }, kArgument, errors::kShape, {"without values or indices", "'table'"}},
    {"UndefinedRowsInReplicas", [](World& w) { w.in_replicas([&](auto&) { w.table.scatter_add({}); }); }, kArgument, errors::kShape,
     {"without values or indices", "'table'"}},
    {"IndicesThatAreNoIntegers", [](World& w) { w.table.scatter_add({at::ones({1, 2}), at::ones({1}), {}}); }, kArgument, errors::kDtype,
     {"no integers", "'table'"}},
    {"TheMinimumOfASum", [](World& w) { w.table.scatter_min(rows({0}, at::ones({1, 2}))); }, Code::Unimplemented, errors::kVariableAssign,
     {"scatter_min is only supported for mirrored variable", "SUM"}},
    {"RowsOfATotal", [](World& w) { w.total.scatter_add({at::ones({1}), at::tensor({0}), {}}); }, Code::Unimplemented, errors::kVariableAssign,
     {"SyncOnReadVariable doesn't support `scatter_add`"}},
    {"TheSameRowsFromAllReplicas",
     [](World& w) { const auto same = rows({0}, at::ones({1, 2})); w.in_replicas([&](auto&) { w.table.scatter_add(same); }); }, kArgument,
     errors::kNotReducible, {"A non-DistributedValues value", "same rows"}},
    {"StrictAssignWithoutAggregation", [](World& w) { w.strict.run([&] { w.guarded.assign(at::ones({2})); }); }, kArgument, errors::kVariableAssign,
     {"You must specify an aggregation method", ".strict = false"}},
    {"StrictScatterWithoutAggregation",
     [](World& w) { w.strict.run([&] { w.guarded.scatter_add({at::ones({1}), at::tensor({0}), {}}); }); }, kArgument, errors::kVariableAssign,
     {"You must specify an aggregation method", ".strict = false"}},
    {"StrictAssignOfAPerReplica", [](World& w) { w.guarded.assign(pair(at::ones({2}), at::zeros({2}))); }, kArgument, errors::kVariableAssign,
     {"Expected value to be mirrored", ".strict = false"}},
    {"StrictUpdateWithAPerReplica",
     [](World& w) { w.strict.extended().update(w.guarded, [](at::Tensor v, const at::Tensor& d) { v.add_(d); }, pair(at::ones({2}), at::zeros({2}))); },
     kArgument, errors::kVariableAssign, {"Expected value to be mirrored", ".strict = false"}},
};

class MisuseTest : public testing::TestWithParam<Misuse> {};

TEST_P(MisuseTest, SaysWhatIsWrongAndWhatToDo) {
  const Misuse& misuse = GetParam();
  const Watchdog watchdog(60s, misuse.name);
  World world;
  const Seen seen = error_of([&] { misuse.call(world); });
  EXPECT_EQ(to_string(seen.code), to_string(misuse.code)) << seen.text;
  EXPECT_EQ(seen.number, misuse.number) << seen.text;
  for (const char* fragment : misuse.fragments) EXPECT_NE(seen.text.find(fragment), std::string::npos) << "no '" << fragment << "' in\n" << seen.text;
  EXPECT_FALSE(seen.parts.help.empty()) << "says nothing about what to do:\n" << seen.text;
  EXPECT_FALSE(explain(seen.number).empty());

  EXPECT_FALSE(has_strategy());
  const auto sums = world.a.run([] { return get_replica_context().all_reduce(ReduceOp::Sum, at::ones({})).item<float>(); });
  EXPECT_EQ(sums.values(), (std::vector{2.0f, 2.0f}));
  for (const auto* variable : {&world.none, &world.sum, &world.mean, &world.first, &world.table, &world.total, &world.guarded}) {
    for (const auto& component : variable->values()) EXPECT_EQ(component.abs().sum().item<float>(), 0) << variable->name() << " was changed";
  }
}

std::string name_of(const testing::TestParamInfo<Misuse>& info) { return info.param.name; }
INSTANTIATE_TEST_SUITE_P(Contexts, MisuseTest, testing::ValuesIn(kContexts), name_of);
INSTANTIATE_TEST_SUITE_P(Mixtures, MisuseTest, testing::ValuesIn(kMixtures), name_of);
INSTANTIATE_TEST_SUITE_P(Meetings, MisuseTest, testing::ValuesIn(kMeetings), name_of);
INSTANTIATE_TEST_SUITE_P(Values, MisuseTest, testing::ValuesIn(kValues), name_of);
INSTANTIATE_TEST_SUITE_P(Options, MisuseTest, testing::ValuesIn(kOptions), name_of);
INSTANTIATE_TEST_SUITE_P(Variables, MisuseTest, testing::ValuesIn(kVariables), name_of);

}  // namespace
}  // namespace lockstep
