#include "lockstep/comm/coordination/words.h"

#include <algorithm>
#include <iomanip>
#include <map>
#include <sstream>

#include "lockstep/base/text.h"
#include "lockstep/comm/cluster/cluster_spec.h"
#include "lockstep/comm/disagreement.h"

namespace lockstep::coordination {
namespace {

std::vector<std::string> lines_of(const std::string& text) {
  std::vector<std::string> lines;
  std::istringstream in(text);
  for (std::string line; std::getline(in, line);) lines.push_back(line);
  return lines;
}

}  // namespace

std::string title(const Member& member) { return str(member.name, " (", member.address, ")"); }

std::string seconds_text(std::chrono::nanoseconds time) {
  const double seconds = std::chrono::duration<double>(time).count();
  return str(std::fixed, std::setprecision(seconds < 0.1 ? 3 : 1), seconds, " s");
}

std::string difference(const std::string& name_a, const std::string& a, const std::string& name_b,
                       const std::string& b) {
  return lockstep::difference({name_a, lines_of(a)}, {name_b, lines_of(b)});
}

// A cluster is one long line of JSON, of which the tasks that differ are worth more than the beginning.
static std::string cluster_difference(const std::string& name_a, const std::string& a, const std::string& name_b,
                                      const std::string& b) {
  try {
    const auto lines = lines_of(lockstep::difference(parse_cluster(a), name_a, parse_cluster(b), name_b));
    if (!lines.empty()) return list_of(lines);
  } catch (const Error&) {
  }
  return difference(name_a, a, name_b, b);
}

FactDifference difference(const std::string& name_a, const std::vector<Fact>& a, const std::string& name_b,
                          const std::vector<Fact>& b) {
  const Fact none{.value = "(none)", .may_differ = true};
  std::map<std::string, std::pair<const Fact*, const Fact*>> pairs;
  for (const Fact& fact : a) pairs[fact.name] = {&fact, &none};
  for (const Fact& fact : b) {
    const auto [pair, is_new] = pairs.try_emplace(fact.name, &none, &fact);
    if (!is_new) pair->second.second = &fact;
  }
  FactDifference found;
  for (const auto& [name, pair] : pairs) {
    const auto& [here, there] = pair;
    if (here->value == there->value) continue;
    const std::string text = name == "cluster" ? cluster_difference(name_a, here->value, name_b, there->value)
                                               : difference(name_a, here->value, name_b, there->value);
    std::string& kind = here->may_differ && there->may_differ ? found.tolerated
                        : name == "cluster"                   ? found.cluster
                                                              : found.program;
    kind += str(kind.empty() ? "" : "; ", name, ": ", text);
  }
  return found;
}

}  // namespace lockstep::coordination
