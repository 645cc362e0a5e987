#include "lockstep/contrib/tower_words.h"

#include <algorithm>
#include <string_view>

#include "lockstep/base/error.h"
#include "lockstep/base/text.h"

namespace lockstep::contrib::detail {
namespace {

using Words = std::pair<std::string_view, std::string_view>;
/// The main API's terms, and their names in programs with towers.
constexpr Words kTowerWords[] = {
    {"=run", "call_for_each_tower"},
    {"run, on replica", "call_for_each_tower, on tower"},
    {"the same job, replica and task", "the same job, replica and task"},
    {"auto& replica = ls::get_replica_context()", "auto tower = contrib::get_tower_context()"},
    {"replicas made a different number of", "Some towers made a different number of"},
    {"a variable without aggregation cannot be written inside a replica of a strict strategy",
     "You must specify an aggregation method to write a mirrored variable inside a tower"},
    {" of an OnRead variable belongs inside replicas",
     ": Tower-local variables may only be assigned in a tower context."},
    {"an OnRead variable", "a tower-local variable"},
    {"the value must be Mirrored: a PerReplica would",
     "Expected value to be mirrored across towers, got a PerDevice: it would"},
    {"pass an axis to reduce uneven batches: strategy.reduce(op, value, /*axis=*/0)",
     "give all towers values of one shape, such as the sums of their rows: towers reduce without an axis"},
    {"loop over the dataset, or use get_next_as_optional",
     "stop at lockstep::OutOfRange, or call initialize() for another pass"},
    {"call it before run and give the step to run", "call it first and pass what it returns"},
    {"from distribute, values_from_function or run of", "from an iterator or call_for_each_tower of"},
    {"pass what run or values_from_function returned", "pass what call_for_each_tower returned"},
    {"; inside replicas use all_reduce and all_gather", ""},
    {"merge_call, all_reduce, all_gather, aggregated assign", "merge_call, aggregated assign"},
    {", or make the strategy with .strict = false", ""},
    {"for several machines use MultiWorkerMirroredStrategy",
     "for several machines call configure with their cluster_spec"},
    {"task_type and task_id of the resolver", "task_type and task_id of configure"},
    {"strategy.local_results(...) or operator[]", "strategy.unwrap(...)"},
    {"read them with local_results", "read them with unwrap"},
    {"or average over replicas: optimizer.set_reduce_op(ReduceOp::Mean)",
     "or call contrib::minimize(optimizer, loss, contrib::LossReduction::MEAN)"},
    {"optimizer.set_reduce_op(ReduceOp::Mean)", "optimizer.set_reduce_op(lockstep::ReduceOp::Mean)"},
    {"ReduceOp::SUM or MEAN", "VariableAggregation::SUM, MEAN or ONLY_FIRST_TOWER"},
    {"ReduceOp::Sum", "VariableAggregation::SUM"},
    {"ReduceOp::Mean", "VariableAggregation::MEAN"},
    {"Aggregation::Sum, Mean or OnlyFirstReplica", "VariableAggregation::SUM, MEAN or ONLY_FIRST_TOWER"},
    {"Aggregation::None", "VariableAggregation::NONE"},
    {"Aggregation::Sum", "VariableAggregation::SUM"},
    {"Aggregation::Mean", "VariableAggregation::MEAN"},
    {"Aggregation::OnlyFirstReplica", "VariableAggregation::ONLY_FIRST_TOWER"},
    {"OnlyFirstReplica", "ONLY_FIRST_TOWER"},
    {"in_replica_context", "in_cross_tower_context"},
    {"cross-replica", "cross-tower"},
    {"per-replica", "per-tower"},
    {"run was called on a strategy that is already running",
     "call_for_each_tower was called on a strategy that is already running"},
    {"call run from one thread", "call call_for_each_tower from one thread"},
    {"inside run on another thread", "inside call_for_each_tower on another thread"},
    {"get_strategy()", "get_distribution_strategy()"},
    {"given to run", "given to call_for_each_tower"},
    {"inside run", "inside call_for_each_tower"},
    {"outside of run", "outside of call_for_each_tower"},
    {"of run", "of call_for_each_tower"},
    {"strategy.run", "strategy.call_for_each_tower"},
    {"strategy.make", "strategy.core().make"},
    {"strategy.make_optimizer", "strategy.core().make_optimizer"},
    {"strategy.set_seed", "strategy.core().set_seed"},
    {"strategy.broadcast", "strategy.core().broadcast"},
    {"what run returned", "what call_for_each_tower returned"},
    {"on the device of local replica", "on the device of this worker's tower"},
    {"local replicas", "towers of this worker"},  // parts: local replica|s
    {"local replica", "tower of this worker"},
    {"PerReplica", "PerDevice"},
    {"get_replica_context", "get_tower_context"},
    {"ReplicaContext", "TowerContext"},
    {"replicas", "towers"},
    {"replica", "tower"},
    {"Replicas", "Towers"},
    {"Replica", "Tower"}};

}  // namespace

Vocabulary tower_words() { return kTowerWords; }

bool is_in_tower(const Strategy& core) {
  const lockstep::detail::ContextEntry* here = lockstep::detail::current_context();
  return here != nullptr && here->strategy == &core && here->replica != nullptr;
}

CrossTowerCall::CrossTowerCall(const Strategy& core, const char* operation) {
  if (is_in_tower(core)) {
    throw FailedPrecondition(
        errors::kWrongContext,
        {.what = str("Method requires being in cross-tower context, use get_tower_context().merge_call(): ", operation,
                     " was called inside a tower"),
         .where = operation,
         .help = str("call ", operation, " outside of the function given to call_for_each_tower, or inside ",
                     "get_tower_context().merge_call(...)")});
  }
  lockstep::detail::require_cross_replica(core, operation);
}

void require_on(const char* operation, const Placement& placement, const Devices& devices) {
  for (const std::string& device : devices) {
    if (std::find(placement.devices.begin(), placement.devices.end(), device) != placement.devices.end()) continue;
    throw InvalidArgument(errors::kComponent,
                          {.what = str("a mirrored argument of ", operation, " has no component on ", device),
                           .where = operation,
                           .help = "reduce or broadcast it without naming devices: it is then on all of them"});
  }
}

void throw_not_mirrored(const char* operation) {
  throw InvalidArgument(
      errors::kComponent,
      {.what = str(operation, ": Expected value to be mirrored across towers, got one value per tower (PerDevice)"),
       .help = "reduce the value first: strategy.reduce(VariableAggregation::MEAN, value, value)"});
}

}  // namespace lockstep::contrib::detail
