#include "lockstep/strategy/same_on_workers.h"

#include <algorithm>
#include <cstdint>
#include <span>

#include "lockstep/base/fnv.h"
#include "lockstep/base/text.h"
#include "lockstep/comm/disagreement.h"

namespace lockstep::workers {
static Statement statement_of(const WorkersOfOneMind<Texts>& group) {
  return {workers_text({group.workers[0]}), group.said};
}

void require_same(WorkerGroup& group, const Description& mine, std::string_view call, const Deadline& deadline) {
  std::uint64_t mark = 0;
  for (const std::string& line : mine.lines) mark = fnv1a(std::span<const char>(line), mark + 1);
  const auto marks = all_gather(group, std::vector{static_cast<std::int64_t>(mark)}, call, deadline);
  if (std::ranges::count(marks, marks[0]) == std::ssize(marks)) return;
  const auto groups =
      group_by_what_they_say(all_gather_texts(group, mine.lines, str(call, ", what differs"), deadline));
  if (groups.size() < 2) return;
  // What is thrown may end the job, so nobody throws before all know why. Who is last to leave may see the job's end here.
  try {
    group.barrier(str(call, ", all know what differs"), deadline);
  } catch (const Error&) {
  }
  throw FailedPrecondition(mine.number, {.what = str(mine.what, " of ", workers_text(groups[1].workers),
                                                     " differs from that of ", workers_text(groups[0].workers)),
                                         .where = str("found when all ", group.workers(), " workers compared it"),
                                         .seen = difference(statement_of(groups[0]), statement_of(groups[1])),
                                         .help = mine.help});
}

}  // namespace lockstep::workers
