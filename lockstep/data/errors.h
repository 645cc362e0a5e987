#pragma once

#include <string>
#include <utility>

#include "lockstep/base/error.h"
#include "lockstep/base/text.h"

// What the errors of this floor are made of.
namespace lockstep::data {

/// For what a call is given and cannot follow: `where` is the call, `what` is wrong with it, `help` what to give instead.
[[noreturn]] inline void refuse_option(std::string where, std::string what, std::string help) {
  throw InvalidArgument(errors::kBadOption,
                        {.what = std::move(what), .where = std::move(where), .help = std::move(help)});
}

}  // namespace lockstep::data
