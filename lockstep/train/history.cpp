#include "lockstep/train/history.h"

#include <limits>

#include "lockstep/base/error.h"
#include "lockstep/base/text.h"

namespace lockstep::train {

std::vector<double> History::of(const std::string& name) const {
  std::vector<double> values;
  for (const Logs& logs : epochs) {
    const auto found = logs.find(name);
    values.push_back(found != logs.end() ? found->second : std::numeric_limits<double>::quiet_NaN());
  }
  return values;
}

double History::last(const std::string& name) const {
  if (!epochs.empty()) {
    const auto found = epochs.back().find(name);
    if (found != epochs.back().end()) return found->second;
  }
  std::string names;
  if (!epochs.empty()) {
    for (const auto& [known, value] : epochs.back()) names += lockstep::str(names.empty() ? "" : ", ", known);
  }
  throw NotFound(errors::kBadOption, {.what = lockstep::str("the history has no \"", name, "\""),
                                      .seen = names.empty() ? "no epoch was trained" : "it has " + names,
                                      .help = "values of validation begin with val_, and need .validation"});
}

}  // namespace lockstep::train
