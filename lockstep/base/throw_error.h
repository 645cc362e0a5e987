#pragma once

#include "lockstep/base/error.h"

namespace lockstep {

/// Throws the error of this code; one that came from another process may have none that is known, and is Internal.
[[noreturn]] LOCKSTEP_EXPORT void throw_error(Code code, int number, ErrorText text);

}  // namespace lockstep
