#pragma once

#include <string>
#include <utility>

#include "lockstep/base/error.h"
#include "lockstep/base/text.h"

// Helpers for the errors of this floor.
namespace lockstep::data {

/// Rejects an argument: `where` is the call, `what` is wrong with it, `help` what to pass instead.
[[noreturn]] inline void refuse_option(std::string where, std::string what, std::string help) {
  throw InvalidArgument(errors::kBadOption,
                        {.what = std::move(what), .where = std::move(where), .help = std::move(help)});
}

}  // namespace lockstep::data
