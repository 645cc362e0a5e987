#pragma once

#include "lockstep/strategy/mirrored_strategy.h"
#include "lockstep/strategy/variable.h"
#include "tests/golden/case.h"
#include "tests/golden/json_value.h"

// The strategies and variables that cases are run with.
namespace lockstep::golden {

/// The strategy requested by a case, with one CPU replica per `replicas`. Cases share strategies, which take longer to
/// make than most cases to run.
Strategy& strategy_for(const Case& given);
/// A second strategy with the same number of replicas.
Strategy& other_strategy_for(const Case& given);
/// Ensures that a failed case cannot spoil the next one.
void forget_strategies();

/// Where a case wants its result: "first", "last", "all" or "value" (wherever `value` is).
Destinations read_destinations(const json& destinations, Strategy& strategy, int value_components);

/// How a case wants values to be sent: null unless it names "reduction_to_one_device", "hierarchical_copy" or "nccl".
std::shared_ptr<CrossDeviceOps> read_cross_device_ops(const json& name, const json& num_packs);

/// {initial, synchronization, aggregation, trainable, name, components}: made in the strategy's scope, or outside of
/// every scope if it is `plain`.
Variable make_variable(const json& description, Strategy& strategy);
VariableOptions read_variable_options(const json& description);

/// Writes each component directly, bypassing the rules of assignment.
void set_components(Variable& variable, const json& components);

}  // namespace lockstep::golden
