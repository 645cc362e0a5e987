#pragma once

#include <gtest/gtest.h>

#include <exception>
#include <string>
#include <string_view>

#include "lockstep/base/error.h"

// Helpers to test the exceptions of calls, for every floor.
namespace lockstep {

/// An error of Lockstep, in parts that outlive it.
struct SeenError {
  Code code = Code::Internal;
  int number = 0;
  std::string text;  ///< the complete text of `what()`
  ErrorText parts;
};

/// Fails the test unless `call` throws a lockstep::Error.
///
///     EXPECT_EQ(error_of([&] { strategy.run(...); }).number, errors::kShape);
template <class F>
SeenError error_of(F&& call) {
  try {
    call();
  } catch (const Error& error) {
    return {error.code(), error.number(), error.what(), error.text()};
  } catch (const std::exception& error) {
    ADD_FAILURE() << "not an error of Lockstep: " << error.what();
    return {};
  }
  ADD_FAILURE() << "nothing was thrown";
  return {};
}

/// The text of the `E` that `call` throws; empty if it throws nothing. An exception of another type passes through and
/// fails the test.
///
///     EXPECT_TRUE(contains(message_of<InvalidArgument>([] { cpus(0); }), "must be >= 1"));
template <class E = std::exception, class F>
std::string message_of(F&& call) {
  try {
    call();
  } catch (const E& error) {
    return error.what();
  }
  return {};
}

inline bool contains(std::string_view text, std::string_view part) { return text.find(part) != std::string_view::npos; }

}  // namespace lockstep
