#include "lockstep/comm/coordination/words.h"

#include <iomanip>
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
std::string cluster_difference(const std::string& name_a, const std::string& a, const std::string& name_b,
                               const std::string& b) {
  try {
    const auto lines = lines_of(lockstep::difference(parse_cluster(a), name_a, parse_cluster(b), name_b));
    if (!lines.empty()) return list_of(lines);
  } catch (const Error&) {
  }
  return difference(name_a, a, name_b, b);
}

}  // namespace lockstep::coordination
