#include "lockstep/strategy/variable_rules.h"

#include "lockstep/base/error.h"
#include "lockstep/base/text.h"
#include "lockstep/strategy/detail/strategy_local.h"
#include "lockstep/strategy/variable_impl.h"
#include "lockstep/values/print.h"

namespace lockstep::detail {

struct ChosenVariableRules {
  const VariableRules* rules = nullptr;
};

void VariableRules::require_change_across(const Variable::Impl& variable, const Write& write) const {
  if (variable.options().aggregation != Aggregation::Sum) return;
  throw_assign(variable,
               str(write.name, " is not possible outside of replicas for an OnRead variable with Aggregation::Sum"),
               write.place ? "call it inside run, or assign the result: variable[i] = variable[i] + value"
                           : "call it inside run, or assign(variable.read() + value)");
}

void VariableRules::require_placed(const Variable::Impl&, const Placement&) const {}

std::string VariableRules::text(const Variable& variable) const {
  const auto component = [&](std::size_t k) {
    const at::Tensor& value = variable.values()[k];
    return str("<'", variable.component_name(k), "' shape=", shape_repr(value.sizes()),
               " dtype=", dtype_name(value.scalar_type()), " value=", numpy_repr(value.detach()), ">");
  };
  if (!variable.is_distributed()) return "Variable " + component(0);
  std::string text =
      variable.synchronization() == Synchronization::OnRead ? "Variable OnRead:{\n" : "Variable OnWrite:{\n";
  for (std::size_t k = 0; k < variable.values().size(); ++k)
    text += str("  ", k, ": ", component(k), k + 1 < variable.values().size() ? ",\n" : "\n");
  return text + "}";
}

void set_variable_rules(Strategy& strategy, const VariableRules& rules) {
  strategy_local<ChosenVariableRules>(strategy).rules = &rules;
}

const VariableRules& variable_rules(const Strategy& strategy) {
  static const VariableRules& of_main_api = *new VariableRules;  // never destroyed: threads may outlive static objects
  const auto* const chosen = find_strategy_local<ChosenVariableRules>(strategy);
  return chosen == nullptr ? of_main_api : *chosen->rules;
}

bool is_client_of_several_workers(const Strategy& strategy) {
  return strategy.num_workers() > 1 && variable_rules(strategy).is_one_client();
}

}  // namespace lockstep::detail
