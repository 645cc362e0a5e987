#pragma once

#include <string>

#include "lockstep/base/export.h"

namespace lockstep::data {

/// To be called while an exception of a user's function is handled: throws it again with the stage's name added, where
/// its type allows that.
[[noreturn]] LOCKSTEP_EXPORT void rethrow_with_stage(const std::string& stage);

/// Runs a user's function; its exceptions get the name of the stage.
template <class F>
decltype(auto) call_for_stage(const std::string& stage, F&& f) {
  try {
    return f();
  } catch (...) {
    rethrow_with_stage(stage);
  }
}

}  // namespace lockstep::data
