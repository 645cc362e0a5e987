#pragma once

#include <utility>

#include "lockstep/base/error.h"
#include "lockstep/base/export.h"
#include "lockstep/strategy/strategy.h"

namespace lockstep::contrib::detail {

/// Throws the same error with towers in its text where the main API speaks of replicas.
[[noreturn]] LOCKSTEP_EXPORT void throw_in_tower_words(const Error& error);

template <class F>
decltype(auto) in_tower_words(F&& f) {
  try {
    return std::forward<F>(f)();
  } catch (const Error& error) {
    throw_in_tower_words(error);
  }
}

LOCKSTEP_EXPORT bool is_in_tower(const Strategy& core);

/// Throws unless `operation` may be called here: outside of towers.
LOCKSTEP_EXPORT void require_cross_tower(const Strategy& core, const char* operation);

/// Throws unless there is a component on each of these devices: on all workers alike, whatever devices they have.
LOCKSTEP_EXPORT void require_on(const char* operation, const Placement& placement, const Devices& devices);

/// Throws: `operation` was given one value per tower where it needs a mirrored or plain one.
[[noreturn]] LOCKSTEP_EXPORT void throw_not_mirrored(const char* operation);

}  // namespace lockstep::contrib::detail
