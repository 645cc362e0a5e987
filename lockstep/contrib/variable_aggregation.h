#pragma once

#include "lockstep/base/named_value.h"
#include "lockstep/strategy/variable.h"

namespace lockstep::contrib {

/// How the towers' values are reduced: lockstep::Aggregation under the names of TensorFlow 1.11.
class VariableAggregation : public NamedValue<Aggregation> {
 public:
  using NamedValue::NamedValue;
  static const VariableAggregation NONE, SUM, MEAN, ONLY_FIRST_TOWER;
};
inline constexpr VariableAggregation VariableAggregation::NONE = Aggregation::None;
inline constexpr VariableAggregation VariableAggregation::SUM = Aggregation::Sum;
inline constexpr VariableAggregation VariableAggregation::MEAN = Aggregation::Mean;
inline constexpr VariableAggregation VariableAggregation::ONLY_FIRST_TOWER = Aggregation::OnlyFirstReplica;

}  // namespace lockstep::contrib
