#include <ATen/TensorIndexing.h>

#include <cmath>

#include "lockstep/strategy/owners_call.h"
#include "tests/support/misuse.h"
#include "tests/support/replicas.h"

// Variables that cannot be made, and assignments that are not possible.
namespace lockstep {
namespace {

// clang-format off
const Misuse kVariables[] = {
    {"NoSynchronization", [](World& w) { w.a.make_variable(at::zeros({}), {.synchronization = Synchronization::None}); }, kArgument,
     errors::kVariableMode, {"Synchronization::None is not supported", "OnRead"}},
    {"AnUnknownSynchronization", [](World& w) { w.a.make_variable(at::zeros({}), {.synchronization = static_cast<Synchronization>(9)}); }, kArgument,
     errors::kVariableMode, {"synchronization must be", "9"}},
    {"AnUnknownAggregation", [](World& w) { w.a.make_variable(at::zeros({}), {.aggregation = static_cast<Aggregation>(-3)}); }, kArgument,
     errors::kVariableMode, {"aggregation must be", "-3"}},
    {"AnUnknownNameOfASynchronization", [](World&) { parse_synchronization("SOMETIMES"); }, kArgument, errors::kVariableMode, {"SOMETIMES", "ON_READ"}},
    {"AnUnknownNameOfAnAggregation", [](World&) { parse_aggregation("MEDIAN"); }, kArgument, errors::kVariableMode, {"MEDIAN", "ONLY_FIRST_REPLICA"}},
    {"MeanOfIntegers", [](World& w) { w.a.make_variable(at::zeros({}, at::kInt), {.aggregation = Aggregation::Mean}); }, kArgument,
     errors::kVariableMode, {"Aggregation::Mean needs a floating dtype", "int32"}},
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
     {"the value must be float32, got float64", "float64", ".to("}},
    {"AssignOfATypeOfOneReplica",
     [](World& w) { w.in_replicas([&](auto&) { w.mean.assign(at::ones({2}, my_id() == 0 ? at::kFloat : at::kDouble)); }); }, kArgument,
     errors::kDtype, {"the value must be float32, got float64"}},
    {"AssignOfAFractionToAnInteger", [](World& w) { w.count.assign(0.5); }, kArgument, errors::kDtype, {"0.5", "does not fit", "int64"}},
    {"AssignOfNanToAnInteger", [](World& w) { w.count.assign(std::nan("")); }, kArgument, errors::kDtype, {"does not fit", "int64"}},
    {"AssignOfAHugeNumberToAnInteger", [](World& w) { w.count.assign(1e30); }, kArgument, errors::kDtype, {"does not fit", "int64"}},
    {"AssignOfAnIntegerThatIsTooLarge", [](World& w) { w.byte.assign(300); }, kArgument, errors::kDtype, {"300", "does not fit", "int8"}},
    {"AssignOfAComplexNumber", [](World& w) { w.a.make_variable(at::zeros({})).assign(c10::Scalar(c10::complex<double>(1, 2))); }, kArgument,
     errors::kDtype, {"does not fit", "float32"}},
    {"SumOfOneObject", [](World& w) { const at::Tensor one = at::ones({2}); w.in_replicas([&](auto&) { w.sum.assign(one); }); }, kArgument,
     errors::kNotReducible, {"Aggregation::Sum needs", "same object", "OnlyFirstReplica"}},
    {"PerReplicaOfTooFewComponentsToAssign", [](World& w) { w.sum.assign(PerReplica<at::Tensor>({at::ones({2})})); }, kArgument, errors::kComponent,
     {"1"}},
    {"PerReplicaToOneReplica", [](World& w) { const auto both = pair(at::ones({2}), at::ones({2})); w.in_replicas([&](auto&) { w.none.assign(both); }); },
     kArgument, errors::kVariableAssign, {"one replica's component", "get()"}},
    {"PerReplicaToATotal", [](World& w) { w.total.assign(pair(at::ones({2}), at::ones({2}))); }, kArgument, errors::kVariableAssign,
     {"OnRead", "inside run"}},
    {"AddToATotalFromOutside", [](World& w) { w.total.assign_add(at::ones({2})); }, kArgument, errors::kVariableAssign,
     {"assign_add is not possible outside of replicas", "inside run"}},
    {"AddToAPartOfATotalFromOutside", [](World& w) { w.total[0] += 1; }, kArgument, errors::kVariableAssign,
     {"'total'", "assign_add to a slice is not possible outside of replicas", "variable[i] = variable[i] + value"}},
    {"ReadWithoutAggregation", [](World& w) { w.silent.read(); }, kArgument, errors::kVariableMode, {"needs an aggregation", "values()"}},
    {"HandleFromOutside",
     [](World& w) {
       const auto scope = w.a.scope();
       w.sum.handle();
     },
     kArgument, errors::kComponent, {"outside of replicas and update functions", "values()"}},
    {"RestoreOfNothing", [](World& w) { w.total.load_state({}); }, kArgument, errors::kVariableAssign, {"undefined tensor", "'total'"}},
    {"RestoreOfAnotherShape", [](World& w) { w.total.load_state(at::ones({3})); }, kArgument, errors::kShape, {"Shape mismatch", "'total'"}},
    {"ARowThatIsNotThere", [](World& w) { w.table.scatter_add(rows({1, 4}, at::ones({2, 2}))); }, kArgument, errors::kShape,
     {"indices[1] = 4", "[0, 4)", "'table'"}},
    {"ANegativeRow", [](World& w) { w.in_replicas([&](auto&) { w.table.scatter_sub(rows({-1}, at::ones({1, 2}))); }); }, kArgument, errors::kShape,
     {"indices[0] = -1", "'table'"}},
    {"RowsOfAnotherWidth", [](World& w) { w.table.scatter_mul({at::ones({1, 3}), at::tensor({0}), {}}); }, kArgument, errors::kShape,
     {"Shape mismatch", "'table'"}},
    {"RowsOfAnotherType", [](World& w) { w.table.scatter_add(rows({0}, at::ones({1, 2}, at::kDouble))); }, kArgument, errors::kDtype, {"'table'"}},
    {"RowsOfANumber", [](World& w) { w.count.scatter_add({at::ones({1}, at::kLong), at::tensor({0}), {}}); }, kArgument, errors::kShape,
     {"scalar", "'count'"}},
    {"UndefinedRows", [](World& w) { w.table.scatter_add({}); }, kArgument, errors::kShape, {"must have values and indices", "'table'"}},
    {"UndefinedRowsInReplicas", [](World& w) { w.in_replicas([&](auto&) { w.table.scatter_add({}); }); }, kArgument, errors::kShape,
     {"must have values and indices", "'table'"}},
    {"IndicesThatAreNoIntegers", [](World& w) { w.table.scatter_add({at::ones({1, 2}), at::ones({1}), {}}); }, kArgument, errors::kDtype,
     {"must be integers", "'table'"}},
    {"TheMinimumOfASum", [](World& w) { w.table.scatter_min(rows({0}, at::ones({1, 2}))); }, Code::Unimplemented, errors::kVariableAssign,
     {"scatter_min needs Aggregation::None or OnlyFirstReplica, got Aggregation::Sum"}},
    {"RowsOfATotal", [](World& w) { w.total.scatter_add({at::ones({1}), at::tensor({0}), {}}); }, Code::Unimplemented, errors::kVariableAssign,
     {"scatter_add is not possible for an OnRead variable"}},
    {"TheSameRowsFromAllReplicas",
     [](World& w) { const auto same = rows({0}, at::ones({1, 2})); w.in_replicas([&](auto&) { w.table.scatter_add(same); }); }, kArgument,
     errors::kNotReducible, {"Aggregation::Sum needs", "same rows"}},
    {"APartThatIsNotThere", [](World& w) { w.sum[7] = 1; }, kArgument, errors::kShape, {"an index does not fit into shape [2]", "out of bounds"}},
    {"APartThatIsNotThereToRead", [](World& w) { w.sum[0][0].read(); }, kArgument, errors::kShape, {"does not fit into shape []"}},
    {"APartOfAnotherShape", [](World& w) { w.table[0] = at::ones({3}); }, kArgument, errors::kShape, {"Shape mismatch", "[2]", "[3]", "'table'"}},
    {"APartOfAnotherType", [](World& w) { w.table[0] = at::ones({2}, at::kDouble); }, kArgument, errors::kDtype, {"float64", "'table'"}},
    {"ANumberForAPartThatDoesNotFit", [](World& w) { w.a.make_variable(at::zeros({2}, at::kLong))[0] = 0.5; }, kArgument, errors::kDtype, {"0.5"}},
    {"APartOfAPartChosenByATensor", [](World& w) { w.table[at::tensor({0, 1})][0] = at::ones({2}); }, kArgument, errors::kVariableAssign,
     {"chosen by a tensor", "index({mask, 0})"}},
    {"DifferentPartsToAssign", [](World& w) { w.in_replicas([&](auto&) { w.sum[my_id()] = at::ones({}); }); }, kPrecondition,
     errors::kDifferentCollective, {"different slices", "'sum'"}},
    {"APartHereTheWholeThere",
     [](World& w) { w.in_replicas([&](auto&) { my_id() == 0 ? w.sum.assign(at::ones({2})) : w.sum[0].assign(at::ones({})); }); }, kPrecondition,
     errors::kDifferentCollective, {"assign to a slice"}},
    {"CloneInsideAnUpdate", [](World& w) { w.a.extended().update(w.none, [&](const at::Tensor&) { w.none.clone(); }); }, kPrecondition,
     errors::kWrongContext, {"clone", "update"}},
    {"ClonesOfDifferentVariables", [](World& w) { w.in_replicas([&](auto&) { (my_id() == 0 ? w.sum : w.mean).clone(); }); }, kArgument,
     errors::kStructure, {"different variables", "'mean'"}},
    {"StrictAssignWithoutAggregation", [](World& w) { w.strict.run([&] { w.guarded.assign(at::ones({2})); }); }, kArgument, errors::kVariableAssign,
     {"a variable without aggregation", ".strict = false"}},
    {"StrictScatterWithoutAggregation",
     [](World& w) { w.strict.run([&] { w.guarded.scatter_add({at::ones({1}), at::tensor({0}), {}}); }); }, kArgument, errors::kVariableAssign,
     {"a variable without aggregation", ".strict = false"}},
    {"StrictAssignOfAPerReplica", [](World& w) { w.guarded.assign(pair(at::ones({2}), at::zeros({2}))); }, kArgument, errors::kVariableAssign,
     {"the value must be Mirrored", ".strict = false"}},
    {"AssignWhereOneWorkerCalls", [](World& w) { const detail::OwnersCall part("map"); w.sum.assign(at::ones({2})); }, kPrecondition,
     errors::kWrongContext, {"a variable was written inside the function given to map"}},
    {"RowsWhereOneWorkerCalls", [](World& w) { const detail::OwnersCall part("map"); w.table.scatter_add(rows({0}, at::ones({1, 2}))); }, kPrecondition,
     errors::kWrongContext, {"a variable was written inside the function given to map"}},
    {"StrictUpdateWithAPerReplica",
     [](World& w) { w.strict.extended().update(w.guarded, [](at::Tensor v, const at::Tensor& d) { v.add_(d); }, pair(at::ones({2}), at::zeros({2}))); },
     kArgument, errors::kVariableAssign, {"the value must be Mirrored", ".strict = false"}},
};
// clang-format on

INSTANTIATE_TEST_SUITE_P(Variables, MisuseTest, testing::ValuesIn(kVariables), misuse_name);

}  // namespace
}  // namespace lockstep
