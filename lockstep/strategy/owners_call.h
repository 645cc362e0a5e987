#pragma once

#include "lockstep/base/export.h"

namespace lockstep::detail {

/// While it lives, this thread calls a function of the program that only the worker that owns an item or a component calls.
/// There, calls that concern all workers are refused: others do not make them.
class LOCKSTEP_EXPORT OwnersCall {
 public:
  explicit OwnersCall(const char* operation);
  ~OwnersCall();
  OwnersCall(const OwnersCall&) = delete;
  OwnersCall& operator=(const OwnersCall&) = delete;

 private:
  const char* outer_;
};

LOCKSTEP_EXPORT bool is_in_owners_call();

/// Throws FailedPrecondition inside of such a function. `call`: what it may not do.
LOCKSTEP_EXPORT void require_call_of_all_workers(const char* call);

}  // namespace lockstep::detail
