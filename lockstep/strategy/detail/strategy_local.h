#pragma once

#include "lockstep/base/local_values.h"
#include "lockstep/strategy/detail/strategy_access.h"

namespace lockstep::detail {

/// The T that belongs to this strategy, made when first asked for: state of one user of strategies, which the strategy keeps and
/// does not know. T needs a name of its own:
/// one in an anonymous namespace may be taken for another.
template <class T>
T& strategy_local(const Strategy& strategy) {
  return StrategyAccess::locals(strategy).get<T>();
}

/// Null if it was never asked for.
template <class T>
T* find_strategy_local(const Strategy& strategy) {
  return StrategyAccess::locals(strategy).find<T>();
}

}  // namespace lockstep::detail
