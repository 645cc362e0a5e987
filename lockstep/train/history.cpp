#include "lockstep/train/history.h"

#include <limits>

#include "lockstep/base/error.h"
#include "lockstep/base/text.h"
#include "lockstep/train/monitored.h"

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
  const Logs last = epochs.empty() ? Logs() : epochs.back();
  if (const auto found = last.find(name); found != last.end()) return found->second;
  throw NotFound(errors::kBadOption,
                 {.what = lockstep::str("the history has no \"", name, "\""),
                  .seen = last.empty() ? "no epoch was trained" : "it has " + detail::names_in(last),
                  .help = "values of validation begin with val_, and need .validation"});
}

}  // namespace lockstep::train
