#pragma once

#include <utility>

#include "lockstep/base/export.h"
#include "lockstep/strategy/variable.h"

namespace lockstep::contrib {

/// A variable with a separate value on each tower: towers write and read their own, and outside of towers its value is
/// the sum (also with NONE), the mean or the first tower's. `assign` outside of towers gives each tower its share with
/// SUM, otherwise the value; `assign_add` and `assign_sub` belong inside towers. Saving uses the value read and loading
/// assigns it, as in TensorFlow: with NONE a loaded variable reads as n times the saved value. Made by
/// `strategy.tower_local_variable`.
class LOCKSTEP_EXPORT TowerLocalVariable : public Variable {
 public:
  explicit TowerLocalVariable(Variable variable) : Variable(std::move(variable)) {}
};

}  // namespace lockstep::contrib
