#pragma once

#include <map>
#include <string>

#include "lockstep/base/error.h"
#include "lockstep/base/text.h"
#include "lockstep/data/format/listed.h"
#include "lockstep/train/callback.h"

namespace lockstep::train::detail {

/// "accuracy, loss"
template <class Value>
std::string names_in(const std::map<std::string, Value>& values) {
  return data::listed(values, ", ", [](const auto& named) { return named.first; });
}

/// The monitored value. InvalidArgument names those that there are.
inline double monitored(const char* callback, const std::string& name, const Logs& logs) {
  const auto found = logs.find(name);
  if (found != logs.end()) return found->second;
  throw InvalidArgument(errors::kBadOption,
                        {.what = lockstep::str(callback, " monitors \"", name, "\", which the epoch does not have"),
                         .where = callback,
                         .seen = logs.empty() ? "the epoch has no values" : "it has " + names_in(logs),
                         .help = "name one of them in .monitor; values of validation need .validation"});
}

}  // namespace lockstep::train::detail
