// How the chief interprets members that cannot reach each other, or that all fall silent at once.

#include <algorithm>
#include <set>

#include "lockstep/base/text.h"
#include "lockstep/comm/coordination/chief.h"
#include "lockstep/comm/coordination/silence.h"

namespace lockstep::coordination {

// A member that is gone does not reach the chief either, which late heartbeats soon show. Only if both beat without
// gaps is the network between them cut. Reports are repeated while it is cut, so none needs to be stored.
void Chief::cut(const Member& member, int other, Time now) {
  if (failure_ || member_of(other) == nullptr || other == member.id) return;
  const auto is_steady = [&](const Member& one) {
    return one.presence == Presence::Here && now - one.last_beat < steady_within(options_) &&
           now - one.steady_since >= 2 * options_.heartbeat_interval;
  };
  const Member& first = *member_of(std::min(member.id, other));
  const Member& second = *member_of(std::max(member.id, other));
  if (!is_steady(first) || !is_steady(second)) return;
  const bool is_with_chief = &first == &chief() || &second == &chief();
  fail(Unavailable(
      errors::kPeerLost,
      {.what = str(to_string(first.entry), " and ", to_string(second.entry), " cannot reach each other"),
       .where = str(first.entry.name(), " was ", last_seen(first.last), "; ", second.entry.name(), " was ",
                    last_seen(second.last)),
       .seen = str(is_with_chief ? "heartbeats still reach the chief, but no data" : "both still reach the chief",
                   "; reported by ", member.entry.name()),
       .help = "look at the network between these two hosts: routes, firewalls, cables"}));
}

// If members of several other hosts fall silent within one heartbeat and no other host is left, this host is cut off.
bool Chief::fail_if_cut_off(Time now) {
  const auto limit = std::max<Time::duration>(
      options_.dead_after / 2, options_.dead_after - options_.heartbeat_interval - options_.dead_after / 10);
  std::set<std::string> hosts;
  std::vector<WorkerEntry> silent;
  for (const Member& member : members_) {
    if (member.presence != Presence::Here || is_same_host(member.entry.address.host, chief().entry.address.host))
      continue;
    if (now - member.last_beat < limit) return false;
    hosts.insert(member.entry.address.host);
    silent.push_back(member.entry);
  }
  if (!started_ || failure_ || hosts.size() < 2) return false;
  fail(Unavailable(errors::kChiefGone,
                   {.what = str(to_string(chief().entry), ", the chief, is cut off from all other hosts"),
                    .where = last_seen(chief().last),
                    .seen = str(names_of(silent), " fell silent at the same time"),
                    .help = str("look at the network of ", chief().entry.name(), "'s host")}));
  return true;
}

}  // namespace lockstep::coordination
