#include "lockstep/contrib/tower_words.h"

#include <algorithm>
#include <string_view>

#include "lockstep/base/error_words.h"
#include "lockstep/base/text.h"

namespace lockstep::contrib::detail {
namespace {

using Words = std::pair<std::string_view, std::string_view>;
/// What the main API says, and what programs of towers call it. "/replica:0" is a part of a device's name and stays.
constexpr Words kTowerWords[] = {
    {"=run", "call_for_each_tower"},
    {"/replica", "/replica"},
    {"the same job, replica and task", "the same job, replica and task"},
    {"auto& replica = ls::get_replica_context()", "auto tower = contrib::get_tower_context()"},
    {"replicas made a different number of", "Some towers made a different number of"},
    {"a variable without aggregation cannot be written inside a replica of a strict strategy",
     "You must specify an aggregation method to write a mirrored variable inside a tower"},
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
    {"run was called on a strategy that is already running",
     "call_for_each_tower was called on a strategy that is already running"},
    {"call run from one thread", "call call_for_each_tower from one thread"},
    {"inside run on another thread", "inside call_for_each_tower on another thread"},
    {"get_strategy()", "get_distribution_strategy()"},
    {"given to run", "given to call_for_each_tower"},
    {"inside run", "inside call_for_each_tower"},
    {"outside of run", "outside of call_for_each_tower"},
    {" of run ", " of call_for_each_tower "},
    {"strategy.run", "strategy.call_for_each_tower"},
    {"what run returned", "what call_for_each_tower returned"},
    {"on the device of local replica", "on the device of this worker's tower"},
    {"local replicas", "towers of this worker"},
    {"local replica", "tower of this worker"},
    {"PerReplica", "PerDevice"},
    {"replica", "tower"},
    {"Replica", "Tower"}};

}  // namespace

void throw_in_tower_words(const Error& error) {
  ErrorText text = error.text();
  // What came out of a tower in these words already has its place.
  if (const auto added = text.where.find(", on replica ");
      text.where.substr(0, added).find("on tower ") != text.where.npos)
    text.where.resize(std::min(added, text.where.size()));
  throw_in_words(kTowerWords, Error(error.code(), error.number(), std::move(text)));
}

bool is_in_tower(const Strategy& core) {
  const lockstep::detail::ContextEntry* here = lockstep::detail::current_context();
  return here != nullptr && here->strategy == &core && here->replica != nullptr;
}

void require_cross_tower(const Strategy& core, const char* operation) {
  if (is_in_tower(core)) {
    throw FailedPrecondition(
        errors::kWrongContext,
        {.what = str("Method requires being in cross-tower context, use get_tower_context().merge_call(): ", operation,
                     " was called inside a tower"),
         .where = operation,
         .help = str("call ", operation, " outside of the function given to call_for_each_tower, or inside ",
                     "get_tower_context().merge_call(...)")});
  }
  in_tower_words([&] { lockstep::detail::require_cross_replica(core, operation); });
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
