#pragma once

#include <optional>
#include <string>

#include "tests/golden/case.h"

// The cases of input.json.
namespace lockstep::golden_input {

using golden::Case;
using golden::json;
using golden::UnknownForm;

/// What a case of an area that this program owns came to, in the form of `expect`. UnknownForm if the program does not
/// understand it: another input, another value, or one that is missing.
json run_area(const Case& given);

/// What differs between what was expected and what came; nothing if all is well. Structures are compared leaf by leaf,
/// floats with a relative tolerance of 1e-5, of errors the kind. Keys of `got` that were not expected do not count.
std::string difference(const json& expected, const json& got, const std::string& path = "");

/// Where Lockstep does something else on purpose, or C++ leaves nothing to test.
struct Exception {
  bool meaningless = false;  ///< there is nothing in C++ to compare with
  std::string reason;
  json expect;  ///< what is expected instead; null if meaningless
};
std::optional<Exception> exception_for(const Case& given);

}  // namespace lockstep::golden_input
