#pragma once

#include "lockstep/strategy/detail/strategy_local.h"

namespace lockstep::detail {

struct ModelsMade {};

inline void note_model(const Strategy& strategy) { strategy_local<ModelsMade>(strategy); }

/// Whether the strategy has models, or had.
inline bool has_made_models(const Strategy& strategy) { return find_strategy_local<ModelsMade>(strategy) != nullptr; }

}  // namespace lockstep::detail
