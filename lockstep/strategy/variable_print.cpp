#include <ostream>

#include "lockstep/base/error.h"
#include "lockstep/base/text.h"
#include "lockstep/strategy/detail/strategy_local.h"
#include "lockstep/strategy/strategy_words.h"
#include "lockstep/strategy/variable_impl.h"
#include "lockstep/values/print.h"

// Variables and their modes as text.
namespace lockstep {

namespace detail {

struct PrintedVariables {
  VariableText text = nullptr;
};

}  // namespace detail

void detail::set_variable_text(Strategy& strategy, VariableText text) {
  strategy_local<PrintedVariables>(strategy).text = text;
}

std::ostream& operator<<(std::ostream& out, const Variable& variable) {
  if (const Strategy* const strategy = variable.impl()->strategy_if_alive()) {
    const auto* const printed = detail::find_strategy_local<detail::PrintedVariables>(*strategy);
    if (printed != nullptr) return out << printed->text(variable);
  }
  const auto component = [&](std::size_t k) {
    const at::Tensor& value = variable.values()[k];
    return lockstep::str("<'", variable.component_name(k), "' shape=", shape_repr(value.sizes()),
                         " dtype=", dtype_name(value.scalar_type()), " value=", numpy_repr(value.detach()), ">");
  };
  if (!variable.is_distributed()) return out << "Variable " << component(0);
  out << "Variable " << (variable.synchronization() == Synchronization::OnRead ? "OnRead" : "OnWrite") << ":{\n";
  for (std::size_t k = 0; k < variable.values().size(); ++k) {
    out << "  " << k << ": " << component(k) << (k + 1 < variable.values().size() ? ",\n" : "\n");
  }
  return out << "}";
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
