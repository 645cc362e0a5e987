#include "lockstep/base/error.h"
#include "lockstep/base/text.h"
#include "lockstep/nn/mirrored_optimizer.h"

namespace lockstep::detail {

std::vector<std::vector<int>> assign_groups(const ModuleCore& module,
                                            const std::vector<std::vector<std::string>>& prefixes) {
  std::vector<std::vector<int>> groups(prefixes.size());
  const auto& parameters = module.parameters();
  for (std::size_t p = 0; p < parameters.size(); ++p) {
    for (std::size_t g = 0; g < prefixes.size(); ++g) {
      bool matches = false;
      for (const auto& prefix : prefixes[g]) matches |= parameters[p].name.rfind(prefix, 0) == 0;
      if (!matches) continue;
      groups[g].push_back(static_cast<int>(p));
      break;
    }
  }
  for (std::size_t g = 0; g < groups.size(); ++g) {
    if (!groups[g].empty()) continue;
    std::string names;
    for (const auto& parameter : parameters) names += " " + parameter.name;
    throw InvalidArgument(errors::kOptimizer,
                          {.what = str("parameter group ", g, " holds no parameter"),
                           .where = "make_optimizer",
                           .seen = parameters.empty() ? "the model has no parameters" : "the model has" + names,
                           .help = "prefixes are compared with the beginning of the names; earlier groups take first"});
  }
  return groups;
}

}  // namespace lockstep::detail
