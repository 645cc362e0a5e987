#pragma once

#include <optional>
#include <string>

#include "tests/golden/case.h"

// The cases of input.json.
namespace lockstep::golden_input {

using golden::Case;
using golden::json;
using golden::UnknownForm;

/// The outcome of a case of an area that this program owns, in the form of `expect`. UnknownForm if the program does
/// not understand it: another input, another value, or a missing one.
json run_area(const Case& given);

/// The difference between the expected and the actual result; nothing if they agree. Structures are compared leaf by
/// leaf, floats with a relative tolerance of 1e-5, errors by kind. Unexpected keys of `got` are ignored.
std::string difference(const json& expected, const json& got, const std::string& path = "");

/// Deliberate differences, and cases with nothing to test in C++.
struct Exception {
  bool meaningless = false;  ///< there is nothing in C++ to compare with
  std::string reason;
  json expect;  ///< the expected result instead; null if meaningless
};
std::optional<Exception> exception_for(const Case& given);

}  // namespace lockstep::golden_input
