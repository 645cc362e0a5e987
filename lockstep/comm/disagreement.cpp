#include "lockstep/comm/disagreement.h"

#include "lockstep/base/text.h"

namespace lockstep {
namespace {

std::string quoted(const std::vector<std::string>& lines, std::size_t i, std::size_t end) {
  constexpr std::size_t kMost = 200;
  if (i >= end) return "nothing";
  return str('"', lines[i].substr(0, kMost), lines[i].size() > kMost ? "...\"" : "\"");
}

}  // namespace

std::string list_of(const std::vector<std::string>& names, std::size_t most) {
  std::string text;
  const std::size_t shown = names.size() <= most ? names.size() : most - 1;
  for (std::size_t i = 0; i < shown; ++i) text += str(i == 0 ? "" : i + 1 == names.size() ? " and " : ", ", names[i]);
  return shown < names.size() ? str(text, " and ", names.size() - shown, " more") : text;
}

std::string workers_text(const std::vector<int>& workers) {
  std::vector<std::string> numbers;
  for (const int worker : workers) numbers.push_back(std::to_string(worker));
  return str(workers.size() == 1 ? "worker " : "workers ", list_of(numbers));
}

std::string difference(const Statement& a, const Statement& b) {
  constexpr int kShown = 3;
  std::size_t from = 0, end_a = a.lines.size(), end_b = b.lines.size();
  while (from < end_a && from < end_b && a.lines[from] == b.lines[from]) ++from;
  while (end_a > from && end_b > from && a.lines[end_a - 1] == b.lines[end_b - 1]) --end_a, --end_b;
  std::string text;
  int differing = 0;
  for (std::size_t i = from; i < std::max(end_a, end_b); ++i) {
    if ((i < end_a && i < end_b && a.lines[i] == b.lines[i]) || ++differing > kShown) continue;
    text += str(text.empty() ? "" : "; ", a.name, " has ", quoted(a.lines, i, end_a), ", ", b.name, " has ",
                quoted(b.lines, i, end_b));
  }
  return differing > kShown ? str(text, "; and ", counted(differing - kShown, "more line")) : text;
}

std::optional<ErrorText> disagreement(const std::string& what, const std::vector<std::vector<std::string>>& of_workers,
                                      const std::function<std::string(const std::vector<int>&)>& names,
                                      const std::string& help) {
  const auto groups = group_by_statement(of_workers);
  if (groups.size() < 2) return std::nullopt;
  const auto &most = groups[0], &others = groups[1];
  return ErrorText{
      .what = str(what, " of ", names(others.workers), " differs from that of ", names(most.workers)),
      .where = str("found when all ", of_workers.size(), " workers compared it"),
      .seen = difference({names({most.workers[0]}), most.statement}, {names({others.workers[0]}), others.statement}),
      .help = help};
}

}  // namespace lockstep
