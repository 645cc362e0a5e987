// What the chief makes of members that cannot reach each other, or that all fall silent at once.

#include <algorithm>
#include <set>

#include "lockstep/base/text.h"
#include "lockstep/comm/coordination/chief.h"
#include "lockstep/comm/coordination/silence.h"

namespace lockstep::coordination {

// A member that is gone does not reach the chief either, whose heartbeats soon tell. Only if both beat without gaps is it the
// way between them. Reports are repeated as long as the way is cut, so none needs to be remembered.
void Chief::cut(const Seat& seat, int other, Time now) {
  if (failure_ || seat_of(other) == nullptr || other == seat.id) return;
  const auto is_steady = [&](const Seat& one) {
    return one.presence == Presence::Here && now - one.last_beat < steady_within(options_) &&
           now - one.steady_since >= 2 * options_.heartbeat_interval;
  };
  const Seat& first = *seat_of(std::min(seat.id, other));
  const Seat& second = *seat_of(std::max(seat.id, other));
  if (!is_steady(first) || !is_steady(second)) return;
  const bool is_with_chief = &first == &chief() || &second == &chief();
  fail(Unavailable(
      errors::kPeerLost,
      {.what = str(to_string(first.member), " and ", to_string(second.member), " cannot reach each other"),
       .where = str(first.member.name(), " was ", last_seen(first.last), "; ", second.member.name(), " was ",
                    last_seen(second.last)),
       .seen = str(is_with_chief ? "heartbeats still reach the chief, but no data" : "both still reach the chief",
                   "; reported by ", seat.member.name()),
       .help = "look at the network between these two hosts: routes, firewalls, cables"}));
}

// If members of several other hosts fall silent within one heartbeat and none of another host is left, it is this host.
bool Chief::fail_if_cut_off(Time now) {
  const auto limit = std::max<Time::duration>(
      options_.dead_after / 2, options_.dead_after - options_.heartbeat_interval - options_.dead_after / 10);
  std::set<std::string> hosts;
  std::vector<WorkerEntry> silent;
  for (const Seat& seat : seats_) {
    if (seat.presence != Presence::Here || is_same_host(seat.member.address.host, chief().member.address.host))
      continue;
    if (now - seat.last_beat < limit) return false;
    hosts.insert(seat.member.address.host);
    silent.push_back(seat.member);
  }
  if (!started_ || failure_ || hosts.size() < 2) return false;
  fail(Unavailable(errors::kChiefGone,
                   {.what = str(to_string(chief().member), ", the chief, is cut off from all other hosts"),
                    .where = last_seen(chief().last),
                    .seen = str(names_of(silent), " fell silent at the same time"),
                    .help = str("look at the network of ", chief().member.name(), "'s host")}));
  return true;
}

}  // namespace lockstep::coordination
