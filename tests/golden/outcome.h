#pragma once

#include <optional>
#include <stdexcept>
#include <string>

#include "lockstep/base/error.h"
#include "tests/golden/case.h"

// The outcome of a call: its result, or the error it ended with, in the form of `expect`.
namespace lockstep::golden {

/// A test's own exception that must pass through Lockstep unchanged; ZeroDivisionError in the data.
struct DeliberateFailure : std::runtime_error {
  using std::runtime_error::runtime_error;
};

/// The current exception, {"error": "INVALID_ARGUMENT", "text": ...}; for use in a catch block. Rethrows UnknownForm.
json current_error();

/// The result of `call()`, or the error it throws.
template <class F>
json outcome_of(F&& call) {
  try {
    return call();
  } catch (...) {
    return current_error();
  }
}

/// As `difference` of json_value.h, for an expected error: compares the kind, not the wording.
std::optional<std::string> error_difference(const json& expected, const json& got, const std::string& path);

}  // namespace lockstep::golden
