#include "lockstep/comm/unproven.h"

#include <algorithm>

#include "lockstep/base/logging.h"
#include "lockstep/base/text.h"

namespace lockstep {

Places places_for(const std::vector<std::string>& hosts) {
  Places places;
  for (const std::string& host : hosts) ++places.kept[host];
  const std::size_t more = std::max<std::size_t>(2, 32 / std::max<std::size_t>(1, places.kept.size()));
  for (auto& [host, count] : places.kept) count += more;
  return places;
}

void ClosedCount::add(const std::string& host) {
  ++count_;
  if (quiet_ && !quiet_->expired()) return;
  say_warning(str("closed ", counted(static_cast<long long>(count_), "connection"), " to ", port_,
                  " that did not come from this job; the last from ", host));
  quiet_ = Deadline::after(std::chrono::seconds(5));
  count_ = 0;
}

}  // namespace lockstep
