#include "lockstep/comm/coordination/words.h"

#include <algorithm>
#include <iomanip>
#include <map>
#include <sstream>

#include "lockstep/base/text.h"
#include "lockstep/comm/cluster/cluster_spec.h"

namespace lockstep::coordination {
namespace {

std::string quoted(const std::vector<std::string>& lines, std::size_t i, std::size_t end) {
  constexpr std::size_t kMost = 200;
  if (i >= end) return "nothing";
  return str('"', lines[i].substr(0, kMost), lines[i].size() > kMost ? "...\"" : "\"");
}

std::vector<std::string> lines_of(const std::string& text) {
  std::vector<std::string> lines;
  std::istringstream in(text);
  for (std::string line; std::getline(in, line);) lines.push_back(line);
  return lines;
}

}  // namespace

std::string_view to_string(Presence presence) {
  switch (presence) {
    case Presence::Absent: return "absent";
    case Presence::Here: return "here";
    case Presence::Left: return "left";
    case Presence::Lost: return "lost";
  }
  return "unknown";
}

std::string title(const Member& member) { return str(member.name, " (", member.address, ")"); }

std::string name_list(const std::vector<std::string>& names, std::size_t most) {
  std::string text;
  const std::size_t shown = names.size() <= most ? names.size() : most - 1;
  for (std::size_t i = 0; i < shown; ++i) {
    text += str(i == 0 ? "" : i + 1 == names.size() ? " and " : ", ", names[i]);
  }
  return shown < names.size() ? str(text, " and ", names.size() - shown, " more") : text;
}

std::string seconds_text(std::chrono::nanoseconds time) {
  const double seconds = std::chrono::duration<double>(time).count();
  return str(std::fixed, std::setprecision(seconds < 0.1 ? 3 : 1), seconds, " s");
}

std::string difference(const std::string& name_a, const std::string& text_a, const std::string& name_b,
                       const std::string& text_b) {
  const std::vector<std::string> a = lines_of(text_a), b = lines_of(text_b);
  const bool one_line = a.size() == 1 && b.size() == 1;
  std::size_t from = 0, end_a = a.size(), end_b = b.size();
  while (from < a.size() && from < b.size() && a[from] == b[from]) ++from;
  while (end_a > from && end_b > from && a[end_a - 1] == b[end_b - 1]) --end_a, --end_b;
  constexpr int kShown = 3;
  std::string text;
  int differing = 0;
  for (std::size_t i = from; i < std::max(end_a, end_b); ++i) {
    if ((i < end_a && i < end_b && a[i] == b[i]) || ++differing > kShown) continue;
    text += str(text.empty() ? "" : "; ", one_line ? "" : str("line ", i + 1, ": "), name_a, " has ",
                quoted(a, i, end_a), ", ", name_b, " has ", quoted(b, i, end_b));
  }
  return differing > kShown ? str(text, "; and ", counted(differing - kShown, "more line")) : text;
}

// A cluster is one long line of JSON, of which the tasks that differ are worth more than the beginning.
static std::string cluster_difference(const std::string& name_a, const std::string& a, const std::string& name_b,
                                      const std::string& b) {
  try {
    const auto lines = lines_of(lockstep::difference(parse_cluster(a), name_a, parse_cluster(b), name_b));
    if (!lines.empty()) return name_list(lines);
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
    kind += str(kind.empty() ? "" : "; ", name, text.starts_with("line ") ? ", " : ": ", text);
  }
  return found;
}

}  // namespace lockstep::coordination
