#pragma once

#include <exception>
#include <string>
#include <utility>

#include "lockstep/data/iterator.h"

namespace lockstep::data {

/// Whether an error says that the stream as a whole must not be used, as when a worker has no share of it, and not only
/// that one element failed. It is reported even where the element would be left out.
LOCKSTEP_EXPORT bool concerns_whole_stream(const std::exception_ptr& error);
/// For errors of elements that are left out: throws those that concern the whole stream. There may be no error.
LOCKSTEP_EXPORT void rethrow_if_fatal(const std::exception_ptr& error);

/// What stands at a place of a stream: an element, or the error that took its place.
struct Place {
  Element element;
  std::exception_ptr error = nullptr;

  /// Reads the next place of `input`; false at the end.
  bool read(ElementIterator& input) {
    error = nullptr;
    try {
      return input.next(element);
    } catch (...) {
      error = std::current_exception();
      return true;
    }
  }

  /// Swaps the element out, or throws what took its place.
  void give(Element& to) {
    if (error) std::rethrow_exception(std::exchange(error, nullptr));
    std::swap(to, element);
  }
};

/// Passes over `count` places that lie within parts, such as the rows of batches, and says how many there were. `open`
/// makes sure that there is a part, and is false at the end; one that fails has one place. `pass(left)` passes over up to
/// so many places of it.
template <class Open, class Pass>
std::int64_t skip_within_parts(std::int64_t count, Open open, Pass pass) {
  std::int64_t skipped = 0;
  while (skipped < count) {
    try {
      if (!open()) break;
    } catch (...) {
      rethrow_if_fatal(std::current_exception());
      ++skipped;
      continue;
    }
    skipped += pass(count - skipped);
  }
  return skipped;
}

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
