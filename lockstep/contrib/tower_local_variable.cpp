#include "lockstep/contrib/tower_local_variable.h"

#include "lockstep/base/error.h"
#include "lockstep/base/text.h"
#include "lockstep/contrib/tower_words.h"

namespace lockstep::contrib {
namespace {

void require_tower(const char* operation, const Variable& variable) {
  if (has_strategy() && !in_cross_replica_context()) return;  // outside of all scopes is no tower
  throw FailedPrecondition(errors::kWrongContext,
                           {.what = "Tower-local variables may only be assigned in a tower context.",
                            .where = str(operation, " of '", variable.name(), "'"),
                            .help = str("call ", operation, " inside call_for_each_tower, or assign outside of it")});
}

}  // namespace

TowerLocalVariable::TowerLocalVariable(Strategy& core, const at::Tensor& initial_value, VariableAggregation aggregation,
                                       const std::string& name)
    : core_(&core),
      variable_(core.make_variable(
          initial_value,
          {.name = name, .synchronization = Synchronization::OnRead, .aggregation = aggregation, .trainable = false})) {
}

at::Tensor TowerLocalVariable::read() const {
  if (has_strategy() && !in_cross_replica_context()) return variable_.read();
  const Scope scope(*core_);
  return variable_.aggregation() == Aggregation::None ? core_->reduce(ReduceOp::Sum, variable_) : variable_.read();
}

at::Tensor TowerLocalVariable::assign(const VariableValue& value) {
  detail::in_tower_words([&] { variable_.assign(value, ReadBack::No); });
  return read();
}

at::Tensor TowerLocalVariable::assign_add(const VariableValue& value) {
  require_tower("assign_add", variable_);
  variable_.assign_add(value, ReadBack::No);
  return read();
}

at::Tensor TowerLocalVariable::assign_sub(const VariableValue& value) {
  require_tower("assign_sub", variable_);
  variable_.assign_sub(value, ReadBack::No);
  return read();
}

}  // namespace lockstep::contrib
