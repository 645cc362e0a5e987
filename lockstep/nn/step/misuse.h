#pragma once

#include <string>
#include <utility>

#include "lockstep/base/error.h"

namespace lockstep::detail {

/// Rejects a valid call made at the wrong time.
[[noreturn]] inline void throw_misuse(std::string what, std::string help, const char* where) {
  throw FailedPrecondition(errors::kOptimizer, {.what = std::move(what), .where = where, .help = std::move(help)});
}

}  // namespace lockstep::detail
