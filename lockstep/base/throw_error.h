#pragma once

#include "lockstep/base/error.h"

namespace lockstep {

/// Throws the error of this code; an unknown one from another process becomes Internal.
[[noreturn]] LOCKSTEP_EXPORT void throw_error(Code code, int number, ErrorText text);
[[noreturn]] LOCKSTEP_EXPORT void throw_error(const Error& error);

/// Serializes an error for another process, in at most so many bytes: `seen` is truncated first.
LOCKSTEP_EXPORT std::string to_bytes(const Error& error, std::size_t most);
LOCKSTEP_EXPORT Error error_from(const std::string& bytes);

}  // namespace lockstep
