#include "lockstep/strategy/same_on_workers.h"

#include <algorithm>
#include <cstdint>
#include <span>

#include "lockstep/base/fnv.h"
#include "lockstep/base/text.h"

namespace lockstep::workers {
namespace {

struct Group {
  std::vector<int> workers;
  Texts lines;
};

/// The largest one, which is probably right, comes first; between equal ones, that of the lowest worker.
std::vector<Group> groups_of(const std::vector<Texts>& lines_of) {
  std::vector<Group> groups;
  for (std::size_t w = 0; w < lines_of.size(); ++w) {
    const auto same = std::ranges::find(groups, lines_of[w], &Group::lines);
    if (same == groups.end()) {
      groups.push_back({{static_cast<int>(w)}, lines_of[w]});
    } else {
      same->workers.push_back(static_cast<int>(w));
    }
  }
  std::ranges::sort(groups, [](const Group& a, const Group& b) {
    return a.workers.size() != b.workers.size() ? a.workers.size() > b.workers.size() : a.workers[0] < b.workers[0];
  });
  return groups;
}

std::string who(const std::vector<int>& workers) {
  constexpr std::size_t kShown = 4;
  std::string text = workers.size() == 1 ? "worker " : "workers ";
  for (std::size_t i = 0; i < std::min(workers.size(), kShown); ++i)
    text += str(i == 0 ? "" : i + 1 == workers.size() ? " and " : ", ", workers[i]);
  return workers.size() > kShown ? str(text, " and ", workers.size() - kShown, " more") : text;
}

std::string quoted(const Texts& lines, std::size_t i) {
  return i < lines.size() ? str("\"", lines[i], "\"") : "nothing";
}

std::string difference(const Group& a, const Group& b) {
  constexpr int kShown = 3;
  std::string text;
  int differing = 0;
  for (std::size_t i = 0; i < std::max(a.lines.size(), b.lines.size()); ++i) {
    if (i < a.lines.size() && i < b.lines.size() && a.lines[i] == b.lines[i]) continue;
    if (++differing > kShown) continue;
    text += str(text.empty() ? "" : "; ", who({a.workers[0]}), " has ", quoted(a.lines, i), ", ", who({b.workers[0]}),
                " has ", quoted(b.lines, i));
  }
  return differing > kShown ? str(text, "; and ", counted(differing - kShown, "more line")) : text;
}

}  // namespace

void require_same(WorkerGroup& group, const Description& mine, std::string_view call, const Deadline& deadline) {
  std::uint64_t mark = 0;
  for (const std::string& line : mine.lines) mark = fnv1a(std::span<const char>(line), mark + 1);
  const auto marks = all_gather(group, std::vector{static_cast<std::int64_t>(mark)}, call, deadline);
  if (std::ranges::count(marks, marks[0]) == std::ssize(marks)) return;
  const auto groups = groups_of(all_gather_texts(group, mine.lines, str(call, ", what differs"), deadline));
  if (groups.size() < 2) return;
  // What is thrown may end the job, so nobody throws before all know why. Who is last to leave may see the job's end here.
  try {
    group.barrier(str(call, ", all know what differs"), deadline);
  } catch (const Error&) {
  }
  throw FailedPrecondition(mine.number, {.what = str(mine.what, " of ", who(groups[1].workers),
                                                     " differs from that of ", who(groups[0].workers)),
                                         .where = str("found when all ", group.workers(), " workers compared it"),
                                         .seen = difference(groups[0], groups[1]),
                                         .help = mine.help});
}

}  // namespace lockstep::workers
