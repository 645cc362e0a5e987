#pragma once

#include <sys/random.h>

#include <string>

#include "lockstep/base/error.h"

namespace lockstep {

/// Unpredictable bytes, for keys and tokens.
inline std::string random_bytes(std::size_t count) {
  std::string bytes(count, '\0');
  if (::getrandom(bytes.data(), count, 0) == static_cast<ssize_t>(count)) return bytes;
  throw Unavailable(errors::kInternal, {.what = "the system gives no random numbers",
                                        .help = "run where the system call getrandom is allowed"});
}

}  // namespace lockstep
