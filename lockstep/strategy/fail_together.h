#pragma once

#include <utility>

#include "lockstep/base/export.h"

namespace lockstep {
class Strategy;

namespace detail {

/// The exception that is being handled has kept this worker from a collective that others may be waiting in. Makes another one in
/// its place, so that they throw too instead of taking the program's next collective for it. Where all workers fail alike,
/// nothing has happened and the program can go on. Does nothing inside `run` and in functions that a worker calls for
/// what it owns, whose failures reach all workers by themselves.
LOCKSTEP_EXPORT void tell_workers_of_failure(const Strategy& strategy, const char* operation) noexcept;

/// Calls `f()`: checks of what this worker brings, and then a collective of all workers.
template <class F>
decltype(auto) or_fail_together(const Strategy& strategy, const char* operation, F&& f) {
  try {
    return std::forward<F>(f)();
  } catch (...) {
    tell_workers_of_failure(strategy, operation);
    throw;
  }
}

}  // namespace detail
}  // namespace lockstep
