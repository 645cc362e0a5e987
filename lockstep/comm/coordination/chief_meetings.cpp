// What the chief does for members of a running job: the store, barriers and comparisons.

#include <algorithm>

#include "lockstep/base/text.h"
#include "lockstep/comm/coordination/chief.h"
#include "lockstep/comm/coordination/words.h"
#include "lockstep/comm/disagreement.h"

namespace lockstep::coordination {
namespace {

std::optional<Chief::Time> end_of_wait(std::int64_t wait_ms, Chief::Time now) {
  // More than a year is as good as for ever, and cannot overflow.
  if (wait_ms < 0 || wait_ms > 366LL * 24 * 3600 * 1000) return std::nullopt;
  return now + std::chrono::milliseconds(wait_ms);
}

}  // namespace

void Chief::serve(Seat& seat, std::uint64_t request, const wire::Call& call, Time now) {
  const Waiter waiter{seat.connection, request, seat.member.id, now, end_of_wait(call.wait_ms(), now)};
  switch (call.verb()) {
    case wire::Call::SET: return set(waiter, call);
    case wire::Call::GET:
      if (const auto found = store_.find(call.key()); found != store_.end())
        return reply(waiter, value_of(found->second));
      waiting_for_key_.emplace_back(call.key(), waiter);
      return;
    case wire::Call::BARRIER: {
      const MeetingKey key{call.key(), call.round()};
      Meeting& meeting = meetings_[key];
      (meeting.arrived[seat.member.id] = waiter).said = call.value();
      for (const Seat& other : seats_) {
        if (other.presence == Presence::Left || other.presence == Presence::Lost) return fail_meetings_without(other);
      }
      if (meeting.arrived.size() == seats_.size()) conclude(key, meeting);
      return;
    }
    case wire::Call::ROSTER: {
      wire::FromChief answer;
      *answer.mutable_roster() = roster();
      return reply(waiter, std::move(answer));
    }
    case wire::Call::LEAVE:
      reply(waiter, value_of({}));
      seat.presence = Presence::Left;
      seat.connection = 0;
      forget_waits_of(seat.member.id);
      return fail_meetings_without(seat);
    default: return drop_stranger(seat.connection, "a message of an unknown kind");
  }
}

void Chief::set(const Waiter& waiter, const wire::Call& call) {
  const auto found = store_.find(call.key());
  const std::size_t before = found == store_.end() ? 0 : call.key().size() + found->second.size();
  const std::size_t after = stored_bytes_ - before + call.key().size() + call.value().size();
  if (after > kMaxStore) {
    return reply(waiter, fault_of(ResourceExhausted(
                             errors::kBadOption,
                             {.what = str("the job's store is full: it holds at most ", kMaxStore >> 20, " MB"),
                              .seen = str(counted(std::ssize(store_), "key"), ", ", stored_bytes_, " bytes"),
                              .help = "store addresses and small values only; tensors go through collectives"})));
  }
  stored_bytes_ = after;
  store_[call.key()] = call.value();
  reply(waiter, value_of({}));
  std::erase_if(waiting_for_key_, [&](const auto& waiting) {
    if (waiting.first != call.key()) return false;
    reply(waiting.second, value_of(call.value()));
    return true;
  });
}

void Chief::conclude(const MeetingKey& key, const Meeting& meeting) {
  std::vector<std::string_view> said;
  for (const auto& [member, waiter] : meeting.arrived) said.push_back(waiter.said);
  const auto groups = group_by_what_they_say(said);
  const auto name_of_one = [&](std::size_t group) { return seat_of(groups[group].workers[0])->member.name; };
  const auto names_of = [&](std::size_t group) {
    std::vector<std::string> names;
    for (const int member : groups[group].workers) names.push_back(seat_of(member)->member.name);
    return list_of(names);
  };
  wire::FromChief answer = value_of({});
  if (groups.size() > 1) {
    answer = fault_of(FailedPrecondition(
        errors::kDifferentPrograms,
        {.what = str(key.first, " of ", names_of(1), " differs from that of ", names_of(0)),
         .where = str("found when all ", seats_.size(), " workers compared it"),
         .seen = difference(name_of_one(0), std::string(groups[0].said), name_of_one(1), std::string(groups[1].said)),
         .help = "run the same program with the same arguments on all workers"}));
  }
  for (const auto& [member, waiter] : meeting.arrived) reply(waiter, answer);
  meetings_.erase(key);
}

// Takes a member's arrival back: of one request, or of all.
void Chief::withdraw(int member, std::optional<std::uint64_t> request) {
  for (auto& [key, meeting] : meetings_) {
    const auto found = meeting.arrived.find(member);
    if (found == meeting.arrived.end() || (request && found->second.request != *request)) continue;
    meeting.arrived.erase(found);
  }
  std::erase_if(meetings_, [](const auto& entry) { return entry.second.arrived.empty(); });
}

void Chief::forget_waits_of(int member) {
  std::erase_if(waiting_for_key_, [&](const auto& waiting) { return waiting.second.member == member; });
  withdraw(member, std::nullopt);
}

std::string Chief::name_of(const MeetingKey& key) { return str("barrier \"", key.first, "\""); }

std::string Chief::missing_in(const Meeting& meeting) const {
  std::vector<std::string> names;
  for (const Seat& seat : seats_) {
    if (!meeting.arrived.contains(seat.member.id)) names.push_back(str(title(seat.member), ", ", last_seen(seat.last)));
  }
  return list_of(names, 4);
}

void Chief::fail_meetings_without(const Seat& gone) {
  for (const auto& [key, meeting] : meetings_) {
    const std::string how = gone.presence == Presence::Left ? " has left the job" : " is lost";
    const auto answer = fault_of(
        Unavailable(errors::kPeerLost, {.what = str(title(gone.member), how, ", so ", name_of(key), " cannot complete"),
                                        .where = last_seen(gone.last),
                                        .help = str("let ", gone.member.name, " take part before it leaves")}));
    for (const auto& [member, waiter] : meeting.arrived) reply(waiter, answer);
  }
  meetings_.clear();
}

void Chief::check_waits(Time now) {
  const auto is_late = [&](const Waiter& waiter) { return waiter.until && now >= *waiter.until; };
  const auto give_up = [&](const Waiter& waiter, ErrorText text) {
    text.seen = str("waited ", seconds_text(now - waiter.since));
    reply(waiter, fault_of(DeadlineExceeded(errors::kTimeout, std::move(text))));
  };
  std::erase_if(waiting_for_key_, [&](const auto& waiting) {
    if (!is_late(waiting.second)) return false;
    give_up(waiting.second, {.what = str("the key \"", waiting.first, "\" was never set"),
                             .help = "let a worker set it, or wait longer"});
    return true;
  });
  std::vector<Waiter> late;
  for (auto& [key, meeting] : meetings_) {
    Time first = now;
    for (const auto& [member, waiter] : meeting.arrived) {
      first = std::min(first, waiter.since);
      if (!is_late(waiter)) continue;
      late.push_back(waiter);
      give_up(waiter, {.what = str(name_of(key), ": not all workers came in time"),
                       .where = str("missing: ", missing_in(meeting)),
                       .help = "look at what the missing workers do, or wait longer"});
    }
    if (meeting.warned || now - first < options_.slow_warning) continue;
    meeting.warned = true;
    const auto message = warning_of(
        str(name_of(key), " has waited for ", seconds_text(now - first), "; missing: ", missing_in(meeting)));
    for (const auto& [member, waiter] : meeting.arrived) send(waiter.connection, message);
  }
  // Whoever gave up may come again; until then it has not arrived.
  for (const Waiter& waiter : late) withdraw(waiter.member, waiter.request);
}

void Chief::reply(const Waiter& waiter, wire::FromChief answer) {
  answer.set_request(waiter.request);
  send(waiter.connection, std::move(answer));
}

}  // namespace lockstep::coordination
