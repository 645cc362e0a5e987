#pragma once

#include "lockstep/base/export.h"
#include "lockstep/base/vocabulary.h"
#include "lockstep/strategy/strategy.h"

namespace lockstep::contrib::detail {

/// The terms of programs with towers.
LOCKSTEP_EXPORT Vocabulary tower_words();

/// While it exists, this thread uses the terms of towers: for calls outside of scopes, next to strategies of the main
/// API.
struct TowerWords : VocabularyScope {
  TowerWords() : VocabularyScope(tower_words()) {}
};

LOCKSTEP_EXPORT bool is_in_tower(const Strategy& core);

/// A call of a strategy outside of towers, in their terms. Throws if `operation` may not be called.
class LOCKSTEP_EXPORT CrossTowerCall {
 public:
  CrossTowerCall(const Strategy& core, const char* operation);

 private:
  TowerWords words_;
};

/// Throws unless there is a component on each of these devices: on all workers alike, whatever their devices.
LOCKSTEP_EXPORT void require_on(const char* operation, const Placement& placement, const Devices& devices);

/// Throws: `operation` was given one value per tower but requires a mirrored or plain one.
[[noreturn]] LOCKSTEP_EXPORT void throw_not_mirrored(const char* operation);

}  // namespace lockstep::contrib::detail
