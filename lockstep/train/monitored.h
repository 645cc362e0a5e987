#pragma once

#include <string>

#include "lockstep/base/error.h"
#include "lockstep/base/text.h"
#include "lockstep/train/callback.h"

namespace lockstep::train::detail {

/// The monitored value. InvalidArgument names those that there are.
inline double monitored(const char* callback, const std::string& name, const Logs& logs) {
  const auto found = logs.find(name);
  if (found != logs.end()) return found->second;
  std::string names;
  for (const auto& [known, value] : logs) names += lockstep::str(names.empty() ? "" : ", ", known);
  throw InvalidArgument(errors::kBadOption,
                        {.what = lockstep::str(callback, " monitors \"", name, "\", which the epoch does not have"),
                         .where = callback,
                         .seen = names.empty() ? "the epoch has no values" : "it has " + names,
                         .help = "name one of them in .monitor; values of validation need .validation"});
}

}  // namespace lockstep::train::detail
