#include "lockstep/comm/coordination/words.h"

#include <algorithm>
#include <iomanip>
#include <map>
#include <sstream>

#include "lockstep/base/text.h"

namespace lockstep::coordination {
namespace {

std::string quoted(const std::vector<std::string>& lines, std::size_t i, std::size_t end) {
  if (i >= end) return "nothing";
  constexpr std::size_t kMost = 200;
  return lines[i].size() <= kMost ? str('"', lines[i], '"') : str('"', lines[i].substr(0, kMost), "...\"");
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
    if (i > 0) text += i + 1 == names.size() ? " and " : ", ";
    text += names[i];
  }
  if (shown < names.size()) text += str(" and ", names.size() - shown, " more");
  return text;
}

std::string seconds_text(std::chrono::nanoseconds time) {
  std::ostringstream out;
  const double seconds = std::chrono::duration<double>(time).count();
  out << std::fixed << std::setprecision(seconds < 0.1 ? 3 : 1) << seconds << " s";
  return out.str();
}

std::string difference(const std::string& name_a, const std::vector<std::string>& a, const std::string& name_b,
                       const std::vector<std::string>& b) {
  std::size_t from = 0;
  while (from < a.size() && from < b.size() && a[from] == b[from]) ++from;
  std::size_t end_a = a.size();
  std::size_t end_b = b.size();
  while (end_a > from && end_b > from && a[end_a - 1] == b[end_b - 1]) --end_a, --end_b;
  constexpr std::size_t kShown = 3;
  const std::size_t end = std::max(end_a, end_b);
  std::string text;
  std::size_t differing = 0;
  for (std::size_t i = from; i < end; ++i) {
    if (i < end_a && i < end_b && a[i] == b[i]) continue;
    if (++differing > kShown) continue;
    if (!text.empty()) text += "; ";
    text += str("line ", i + 1, ": ", name_a, " has ", quoted(a, i, end_a), ", ", name_b, " has ", quoted(b, i, end_b));
  }
  if (differing > kShown) text += str("; and ", counted(static_cast<long long>(differing - kShown), "more line"));
  return text;
}

FactDifference difference(const std::string& name_a, const std::vector<Fact>& a, const std::string& name_b,
                          const std::vector<Fact>& b) {
  struct Pair {
    const Fact* a = nullptr;
    const Fact* b = nullptr;
  };
  std::map<std::string, Pair> pairs;
  for (const Fact& fact : a) pairs[fact.name].a = &fact;
  for (const Fact& fact : b) pairs[fact.name].b = &fact;
  FactDifference found;
  for (const auto& [name, pair] : pairs) {
    const std::string value_a = pair.a ? pair.a->value : "(none)";
    const std::string value_b = pair.b ? pair.b->value : "(none)";
    if (value_a == value_b) continue;
    std::vector<std::string> lines_a = lines_of(value_a);
    std::vector<std::string> lines_b = lines_of(value_b);
    std::string text =
        lines_a.size() == 1 && lines_b.size() == 1
            ? str(name, ": ", name_a, " has ", quoted(lines_a, 0, 1), ", ", name_b, " has ", quoted(lines_b, 0, 1))
            : str(name, ", ", difference(name_a, lines_a, name_b, lines_b));
    const bool tolerated = (!pair.a || pair.a->may_differ) && (!pair.b || pair.b->may_differ);
    std::string& kind = tolerated ? found.tolerated : name == "cluster" ? found.cluster : found.program;
    kind += kind.empty() ? text : "; " + text;
  }
  return found;
}

}  // namespace lockstep::coordination
