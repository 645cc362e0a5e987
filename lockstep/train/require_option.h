#pragma once

#include <string>

#include "lockstep/base/error.h"
#include "lockstep/base/text.h"

namespace lockstep::train::detail {

/// Throws InvalidArgument unless an option has a value that makes sense. `where` names what the option is of.
inline void require_option(bool holds, const std::string& where, const std::string& what, const std::string& help) {
  if (!holds) throw InvalidArgument(errors::kBadOption, {.what = what, .where = where, .help = help});
}

}  // namespace lockstep::train::detail
