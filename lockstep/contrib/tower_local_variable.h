#pragma once

#include <utility>

#include "lockstep/base/export.h"
#include "lockstep/strategy/variable.h"

namespace lockstep::contrib {

/// A variable of which each tower has its own: towers write and read theirs, and outside of towers its value is the sum
/// (also with NONE), the mean or the first tower's. `assign` outside of towers gives each its share with SUM, otherwise
/// the value; `assign_add` and `assign_sub` belong inside towers. Saving takes what is read and loading assigns it, as in
/// TensorFlow: with NONE a loaded variable reads as n times what was saved. Made by `strategy.tower_local_variable`.
class LOCKSTEP_EXPORT TowerLocalVariable : public Variable {
 public:
  explicit TowerLocalVariable(Variable variable) : Variable(std::move(variable)) {}
};

}  // namespace lockstep::contrib
