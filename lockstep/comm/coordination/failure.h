#pragma once

#include <string>

#include "lockstep/base/error.h"

namespace lockstep::coordination {

/// Why a job ended early: the same on every worker, whoever saw it first.
struct Failure {
  Code code = Code::Unavailable;
  int number = errors::kPeerLost;
  ErrorText text = {};
  int member = -1;  ///< the member that it is about; -1: none in particular

  /// Throws it as the Error of its code.
  [[noreturn]] void raise() const;
};

}  // namespace lockstep::coordination
