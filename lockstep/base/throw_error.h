#pragma once

#include "lockstep/base/error.h"

namespace lockstep {

/// Throws the error of this code; one that came from another process may have none that is known, and is Internal.
[[noreturn]] LOCKSTEP_EXPORT void throw_error(Code code, int number, ErrorText text);
[[noreturn]] LOCKSTEP_EXPORT void throw_error(const Error& error);

/// An error as it travels to another process, in at most so many bytes: what it has seen is cut off first.
LOCKSTEP_EXPORT std::string to_bytes(const Error& error, std::size_t most);
LOCKSTEP_EXPORT Error error_from(const std::string& bytes);

}  // namespace lockstep
