#pragma once

#include "lockstep/strategy/variable.h"

namespace lockstep::contrib {

/// How the towers' values become one: lockstep::Aggregation under the names of TensorFlow 1.11. The two convert into each
/// other, so either can be passed where the other is expected.
class VariableAggregation {
 public:
  static const VariableAggregation NONE, SUM, MEAN, ONLY_FIRST_TOWER;

  // NOLINTBEGIN(google-explicit-constructor)
  constexpr VariableAggregation(Aggregation value) : value_(value) {}
  constexpr operator Aggregation() const { return value_; }
  // NOLINTEND(google-explicit-constructor)

 private:
  Aggregation value_;
};

inline constexpr VariableAggregation VariableAggregation::NONE = Aggregation::None;
inline constexpr VariableAggregation VariableAggregation::SUM = Aggregation::Sum;
inline constexpr VariableAggregation VariableAggregation::MEAN = Aggregation::Mean;
inline constexpr VariableAggregation VariableAggregation::ONLY_FIRST_TOWER = Aggregation::OnlyFirstReplica;

}  // namespace lockstep::contrib
