#pragma once

#include <ATen/core/Tensor.h>

#include <string>

#include "lockstep/base/export.h"
#include "lockstep/contrib/variable_aggregation.h"
#include "lockstep/strategy/strategy.h"
#include "lockstep/strategy/variable.h"

namespace lockstep::contrib {

/// A variable of which each tower has its own: towers write and read theirs, and outside of towers the value is the sum
/// (also with NONE), the mean or the first tower's. Made by `strategy.tower_local_variable`.
class LOCKSTEP_EXPORT TowerLocalVariable {
 public:
  TowerLocalVariable(Strategy& core, const at::Tensor& initial_value, VariableAggregation aggregation,
                     const std::string& name);

  at::Tensor read() const;
  operator at::Tensor() const { return read(); }  // NOLINT(google-explicit-constructor): used as a tensor

  /// Outside of towers: with SUM each tower gets its share of the value, otherwise the value.
  at::Tensor assign(const VariableValue& value);
  /// Inside towers only.
  at::Tensor assign_add(const VariableValue& value);
  at::Tensor assign_sub(const VariableValue& value);

  /// What a checkpoint holds, and restoring it.
  at::Tensor state() const { return read(); }
  void load_state(const at::Tensor& state) { assign(state); }

  VariableAggregation aggregation() const { return variable_.aggregation(); }
  /// As the main API sees it.
  const Variable& variable() const { return variable_; }

 private:
  Strategy* core_;
  Variable variable_;
};

}  // namespace lockstep::contrib
