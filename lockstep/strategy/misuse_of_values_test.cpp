#include <chrono>
#include <cmath>
#include <limits>

#include "lockstep/strategy/default_strategy.h"
#include "tests/support/logged_lines.h"
#include "tests/support/misuse.h"
#include "tests/support/replicas.h"

// Replicas that do not meet, values that cannot be reduced or gathered, options that make no sense.
namespace lockstep {
namespace {

using namespace std::chrono_literals;

// clang-format off
const Misuse kMeetings[] = {
    {"FewerMergeCallsOnReplicaZero", [](World& w) { w.split([](auto&) {}, [](auto& r) { r.merge_call([](Strategy&) {}); }); }, kPrecondition,
     errors::kUnequalMeetings, {"different number of merge_call", "replica 0 returned"}},
    {"FewerMergeCallsOnReplicaOne", [](World& w) { w.split([](auto& r) { r.merge_call([](Strategy&) {}); }, [](auto&) {}); }, kPrecondition,
     errors::kUnequalMeetings, {"different number of merge_call", "replica 1 returned"}},
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
     errors::kVariableName, {"different names", "replica 1: 'right'", "'left'", "same order"}},
    {"ATimeout",
     [](World& w) {
       const LoggedLines quiet;
       w.in_replicas([&](auto& r) {
         if (my_id() == 1) quiet.await("deadline exceeded");
         r.all_reduce(ReduceOp::Sum, at::ones({}), {.timeout_seconds = 0.01});
       });
     },
     Code::DeadlineExceeded, errors::kTimeout, {"timeout", "timeout_seconds"}},
    {"ATimeoutOfAMergeCall",
     [](World&) {
       const LoggedLines quiet;
       MirroredStrategy hasty({.devices = test_devices(2), .communication = {.timeout_seconds = 0.01}});
       hasty.run([&] {
         if (my_id() == 1) quiet.await("deadline exceeded");
         get_replica_context().merge_call([](Strategy&) {});
       });
     },
     Code::DeadlineExceeded, errors::kTimeout, {"merge_call", "timeout_seconds"}},
};
// clang-format on

// clang-format off
const Misuse kValues[] = {
    {"DifferentVariablesToReduce", [](World& w) { w.a.reduce(ReduceOp::Sum, w.a.run([&] { return my_id() == 0 ? w.sum : w.total; })); }, kArgument,
     errors::kStructure, {"different variables", "replica 0: 'sum', replica 1: 'total'", "read()"}},
    {"AMirroredVariableToSum", [](World& w) { w.a.extended().batch_reduce_to(ReduceOp::Sum, {{w.sum, w.sum}}); }, kArgument, errors::kNotReducible,
     {"Mirrored", "ReduceOp::Mean"}},
    {"AForeignVariableInABatch", [](World& w) { w.a.extended().batch_reduce_to(ReduceOp::Mean, {{w.foreign, "cpu:0"}}); }, kArgument,
     errors::kMixedStrategies, {"batch_reduce_to", "'foreign'"}},
    {"TooFewComponentsToUpdate",
     [](World& w) { w.a.extended().update(w.none, [](at::Tensor v, const at::Tensor& d) { v.add_(d); }, Mirrored<at::Tensor>({at::ones({2})})); },
     kArgument, errors::kComponent, {"argument 0 of update holds a Mirrored of 1 component, too few for 2 components"}},
    {"TooFewComponentsToUpdateInAStructure",
     [](World& w) {
       const std::vector deltas{PerReplica<at::Tensor>({at::ones({2})})};
       w.a.extended().update(w.none, [](at::Tensor v, int, const std::vector<at::Tensor>& d) { v.add_(d[0]); }, 7, deltas);
     },
     kArgument, errors::kComponent, {"argument 1 of update holds a PerReplica of 1 component"}},
    {"TooFewComponentsToUpdateNonSlot",
     [](World& w) { w.a.extended().update_non_slot(w.a.devices(), [](int) {}, PerReplica<int>({1})); }, kArgument, errors::kComponent,
     {"argument 0 of update_non_slot holds a PerReplica of 1 component"}},
    {"UnequalLengthsToAllReduce",
     [](World& w) { w.in_replicas([](auto& r) { r.all_reduce(ReduceOp::Sum, std::vector(my_id() == 0 ? 1 : 2, at::ones({}))); }); }, kArgument,
     errors::kStructure, {"different structures", "same structure"}},
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
     errors::kShape, {"axis must be in [-1, 1), got 3"}},
    {"AnAxisThatIsNotThereToReduce", [](World& w) { w.a.reduce(ReduceOp::Mean, pair(at::ones({2}), at::ones({2})), 1); }, kArgument, errors::kShape,
     {"axis must be in [-1, 1), got 1"}},
    {"AnAxisTwice", [](World& w) { w.a.reduce(ReduceOp::Sum, pair(at::ones({2, 2}), at::ones({2, 2})), {0, -2}); }, kArgument, errors::kShape,
     {"axis -2 is named twice"}},
    {"BoolsToReduce", [](World& w) { w.a.reduce(ReduceOp::Sum, pair(at::ones({2}, at::kBool), at::ones({2}, at::kBool))); }, kArgument,
     errors::kDtype, {"bool values have no sum", "convert"}},
    {"BoolsToAllReduce", [](World& w) { w.in_replicas([](auto& r) { r.all_reduce(ReduceOp::Sum, at::ones({2}, at::kBool)); }); }, kArgument,
     errors::kDtype, {"bool values have no sum", "convert"}},
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
     errors::kComponent, {"at least one component, got 0"}},
    {"SumOfAMirroredValue", [](World& w) { w.a.reduce(ReduceOp::Sum, Mirrored<at::Tensor>({at::ones({}), at::ones({})})); }, kArgument,
     errors::kNotReducible, {"ReduceOp::Mean", "num_replicas_in_sync"}},
    {"SumOfAPlainValue", [](World& w) { w.a.reduce(ReduceOp::Sum, at::ones({})); }, kArgument, errors::kNotReducible,
     {"a plain value", "cannot be reduced", "PerReplica"}},
    {"AnUnknownReduction", [](World& w) { w.a.reduce(static_cast<ReduceOp>(9), pair(at::ones({}), at::ones({}))); }, kArgument, errors::kBadOption,
     {"ReduceOp", "9", "ReduceOp::Sum or ReduceOp::Mean"}},
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
     errors::kDestination, {"destinations must not be empty", "name a device"}},
    {"AnEmptyValueAsDestination",
     [](World& w) { w.a.extended().broadcast_to(at::ones({}), PerReplica<at::Tensor>(std::vector<at::Tensor>{})); }, kArgument, errors::kDestination,
     {"destinations must not be empty"}},
    {"TooManyDestinations", [](World& w) { w.a.extended().broadcast_to(at::ones({}), PerReplica<int>({1, 2, 3})); }, kArgument,
     errors::kDestination, {"3 components", "2 replicas"}},
    {"AnUnknownDestination", [](World& w) { w.a.extended().broadcast_to(at::ones({}), "the moon"); }, kArgument, errors::kDevice, {"the moon"}},
    {"ADestinationThatIsNotHere", [](World& w) { w.a.extended().broadcast_to(at::ones({}), "gpu:63"); }, kArgument, errors::kDevice, {"GPU:63"}},
    {"NoDevicesToUpdate", [](World& w) { w.a.extended().update_non_slot({}, [] { return 1; }); }, kArgument, errors::kDestination,
     {"update_non_slot", "non_slot_devices"}},
    {"TooManyDevicesToUpdate", [](World& w) { w.a.extended().update_non_slot(Devices(3, "cpu:0"), [] { return 1; }); }, kArgument,
     errors::kDestination, {"update_non_slot"}},
};
// clang-format on

// clang-format off
const Misuse kOptions[] = {
    {"NoDevices", [](World&) { MirroredStrategy({.devices = std::vector<std::string>{}}); }, kArgument, errors::kDevice, {"device"}},
    {"ADeviceTwice", [](World&) { MirroredStrategy({.devices = {{"cpu:0", "cpu:0"}}}); }, kArgument, errors::kDevice, {"CPU:0"}},
    {"ADeviceTwiceInOtherWords", [](World&) { MirroredStrategy({.devices = {{"cpu:1", "/device:CPU:1"}}}); }, kArgument,
     errors::kDevice, {"CPU:1"}},
    {"AnUnknownDevice", [](World&) { MirroredStrategy({.devices = {{"toaster:0"}}}); }, kArgument, errors::kDevice, {"toaster", "cpu:"}},
    {"AGpuThatIsNotHere", [](World&) { MirroredStrategy({.devices = {{"gpu:63"}}}); }, kArgument, errors::kDevice, {"GPU:63", "ls::cpus("}},
    {"AGpuByLibTorchsName", [](World&) { MirroredStrategy({.devices = {{"cuda:63"}}}); }, kArgument, errors::kDevice, {"GPU:63", "ls::cpus("}},
    {"ANegativeDevice", [](World&) { MirroredStrategy({.devices = {{"cpu:-1"}}}); }, kArgument, errors::kDevice, {"cpu:-1"}},
    {"NoThreads", [](World&) { MirroredStrategy({.devices = cpus(1), .intra_op_threads = 0}); }, kArgument, errors::kBadOption,
     {"intra_op_threads", "0"}},
    {"LessThanNoThreads", [](World&) { MirroredStrategy({.devices = cpus(1), .intra_op_threads = -4}); }, kArgument, errors::kBadOption,
     {"intra_op_threads", "-4"}},
    {"MoreThreadsThanAnyMachineHas", [](World&) { MirroredStrategy({.devices = cpus(1), .intra_op_threads = 1 << 30}); }, kArgument,
     errors::kBadOption, {"intra_op_threads"}},
    {"NegativePacks", [](World&) { MirroredStrategy({.devices = cpus(1), .communication = {.bytes_per_pack = -1}}); }, kArgument,
     errors::kBadOption, {"bytes_per_pack must be >= 0"}},
    {"NegativePacksOfOneCall",
     [](World& w) { w.in_replicas([](auto& r) { r.all_reduce(ReduceOp::Sum, at::ones({}), {.bytes_per_pack = -1}); }); }, kArgument,
     errors::kBadOption, {"bytes_per_pack must be >= 0"}},
    {"NegativePacksOfAStructure",
     [](World& w) { w.in_replicas([](auto& r) { r.all_reduce(ReduceOp::Sum, std::vector{at::ones({})}, {.bytes_per_pack = -1}); }); }, kArgument,
     errors::kBadOption, {"bytes_per_pack must be >= 0"}},
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
// clang-format on

INSTANTIATE_TEST_SUITE_P(Meetings, MisuseTest, testing::ValuesIn(kMeetings), misuse_name);
INSTANTIATE_TEST_SUITE_P(Values, MisuseTest, testing::ValuesIn(kValues), misuse_name);
INSTANTIATE_TEST_SUITE_P(Options, MisuseTest, testing::ValuesIn(kOptions), misuse_name);

}  // namespace
}  // namespace lockstep
