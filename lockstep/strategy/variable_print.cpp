#include <ostream>

#include "lockstep/base/error.h"
#include "lockstep/base/text.h"
#include "lockstep/strategy/default_strategy.h"
#include "lockstep/strategy/variable_impl.h"
#include "lockstep/strategy/variable_rules.h"

// Variables and their modes as text.
namespace lockstep {

std::ostream& operator<<(std::ostream& out, const Variable& variable) {
  const Strategy* const strategy = variable.impl()->strategy_if_alive();
  return out << detail::variable_rules(strategy ? *strategy : default_strategy()).text(variable);
}

std::string_view to_string(Synchronization synchronization) {
  switch (synchronization) {
    case Synchronization::Auto: return "AUTO";
    case Synchronization::None: return "NONE";
    case Synchronization::OnWrite: return "ON_WRITE";
    case Synchronization::OnRead: return "ON_READ";
  }
  return "invalid";
}

std::string_view to_string(Aggregation aggregation) {
  switch (aggregation) {
    case Aggregation::None: return "NONE";
    case Aggregation::Sum: return "SUM";
    case Aggregation::Mean: return "MEAN";
    case Aggregation::OnlyFirstReplica: return "ONLY_FIRST_REPLICA";
  }
  return "invalid";
}

Synchronization parse_synchronization(std::string_view name) {
  for (const auto value :
       {Synchronization::Auto, Synchronization::None, Synchronization::OnWrite, Synchronization::OnRead}) {
    if (to_string(value) == name) return value;
  }
  throw InvalidArgument(errors::kVariableMode,
                        {.what = lockstep::str("synchronization must be AUTO, NONE, ON_WRITE or ON_READ, got ", name),
                         .help = "use AUTO, ON_WRITE or ON_READ"});
}

Aggregation parse_aggregation(std::string_view name) {
  for (const auto value : {Aggregation::None, Aggregation::Sum, Aggregation::Mean, Aggregation::OnlyFirstReplica}) {
    if (to_string(value) == name) return value;
  }
  throw InvalidArgument(errors::kVariableMode,
                        {.what = lockstep::str("aggregation must be NONE, SUM, MEAN or ONLY_FIRST_REPLICA, got ", name),
                         .help = "use NONE, SUM, MEAN or ONLY_FIRST_REPLICA"});
}

}  // namespace lockstep
