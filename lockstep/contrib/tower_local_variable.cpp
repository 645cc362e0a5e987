#include "lockstep/contrib/tower_local_variable.h"

#include "lockstep/base/error.h"
#include "lockstep/base/text.h"
#include "lockstep/strategy/context.h"

namespace lockstep::contrib {
namespace {

void require_tower(const char* operation, const Variable& variable) {
  if (has_strategy() && in_replica_context()) return;  // outside of all scopes is no tower
  throw FailedPrecondition(errors::kWrongContext,
                           {.what = "Tower-local variables may only be assigned in a tower context.",
                            .where = str(operation, " of '", variable.name(), "'"),
                            .help = str("call ", operation, " inside call_for_each_tower, or assign outside of it")});
}

}  // namespace

at::Tensor TowerLocalVariable::assign_add(const VariableValue& value) {
  require_tower("assign_add", *this);
  return Variable::assign_add(value);
}

at::Tensor TowerLocalVariable::assign_sub(const VariableValue& value) {
  require_tower("assign_sub", *this);
  return Variable::assign_sub(value);
}

}  // namespace lockstep::contrib
