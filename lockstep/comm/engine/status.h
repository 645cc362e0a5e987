#pragma once

#include <exception>
#include <string>
#include <string_view>

#include "lockstep/base/error.h"
#include "lockstep/comm/engine/engine_abi.h"

namespace lockstep::engine {

/// An error as it crosses the ABI and the wire.
lockstep_status make_status(Code code, int number, const ErrorText& text, int peer = -1);

/// The current exception; for use in `catch (...)`.
lockstep_status status_of_exception() noexcept;

/// Throws the error that a status describes; it may come from another process, so its fields are checked.
[[noreturn]] void throw_status(const lockstep_status& status);

/// What the engine throws inside itself: a status on its way up.
class Failure : public std::exception {
 public:
  explicit Failure(const lockstep_status& status) : status_(status) {}
  Failure(Code code, int number, const ErrorText& text, int peer = -1)
      : status_(make_status(code, number, text, peer)) {}

  const char* what() const noexcept override { return status_.what; }
  const lockstep_status& status() const noexcept { return status_; }

 private:
  lockstep_status status_;
};

}  // namespace lockstep::engine
