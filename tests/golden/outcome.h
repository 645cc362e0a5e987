#pragma once

#include <optional>
#include <stdexcept>
#include <string>

#include "lockstep/base/error.h"
#include "tests/golden/case.h"

// What a call came to: its result, or the error it ended with, in the form of `expect`.
namespace lockstep::golden {

/// The exception of a test's own that must come through Lockstep unchanged; ZeroDivisionError in the data.
struct DeliberateFailure : std::runtime_error {
  using std::runtime_error::runtime_error;
};

/// The error that is in flight, {"error": "INVALID_ARGUMENT", "text": ...}; for use in a catch block. Rethrows
/// UnknownForm.
json current_error();

/// What `call()` returns, or the error it throws.
template <class F>
json outcome_of(F&& call) {
  try {
    return call();
  } catch (...) {
    return current_error();
  }
}

/// As `difference` of json_value.h, for an expected error: kinds count, wording does not.
std::optional<std::string> error_difference(const json& expected, const json& got, const std::string& path);

}  // namespace lockstep::golden
