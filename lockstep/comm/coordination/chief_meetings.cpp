// The chief's services for members of a running job: the store, barriers and comparisons.

#include "lockstep/base/text.h"
#include "lockstep/comm/coordination/chief.h"
#include "lockstep/comm/disagreement.h"

namespace lockstep::coordination {

void Chief::serve(Member& member, std::uint64_t request, const wire::Call& call, Time now) {
  // More than a year counts as forever, and cannot overflow.
  const bool is_for_ever = call.wait_ms() < 0 || call.wait_ms() > 366LL * 24 * 3600 * 1000;
  const Time until = is_for_ever ? Time::max() : now + std::chrono::milliseconds(call.wait_ms());
  const Waiter waiter{request, member.id, now, until, call};
  switch (call.verb()) {
    case wire::Call::SET: return set(waiter);
    case wire::Call::GET:
      if (const auto found = store_.find(call.key()); found != store_.end())
        return reply(waiter, value_of(found->second));
      return waiting_.push_back(waiter);
    case wire::Call::BARRIER:
      waiting_.push_back(waiter);
      for (const Member& other : members_) {
        if (other.presence == Presence::Left || other.presence == Presence::Lost) return end_waits_without(other);
      }
      return conclude(call.key());
    case wire::Call::ROSTER: return reply(waiter, roster());
    case wire::Call::LEAVE:
      reply(waiter, value_of({}));
      member.presence = Presence::Left;
      member.connection = 0;
      return end_waits_without(member);
    default: return drop_unknown(member.connection, "a message of an unknown kind");
  }
}

void Chief::set(const Waiter& waiter) {
  const std::string &key = waiter.call.key(), &value = waiter.call.value();
  const auto found = store_.find(key);
  const std::size_t before = found == store_.end() ? 0 : key.size() + found->second.size();
  const std::size_t after = stored_bytes_ - before + key.size() + value.size();
  if (after > kMaxStore) {
    return reply(waiter, fault_of(ResourceExhausted(
                             errors::kBadOption,
                             {.what = str("the job's store is full: it holds at most ", kMaxStore >> 20, " MB"),
                              .seen = str(counted(std::ssize(store_), "key"), ", ", stored_bytes_, " bytes"),
                              .help = "store addresses and small values only; tensors go through collectives"})));
  }
  stored_bytes_ = after;
  store_[key] = value;
  reply(waiter, value_of({}));
  std::erase_if(waiting_, [&](const Waiter& other) {
    if (other.is_at_barrier() || other.call.key() != key) return false;
    reply(other, value_of(value));
    return true;
  });
}

// If a member is there twice, from two threads, its second call belongs to the next meeting.
Chief::Meeting Chief::meeting_at(const std::string& barrier) const {
  Meeting meeting;
  for (auto waiter = waiting_.begin(); waiter != waiting_.end(); ++waiter) {
    if (waiter->is_at_barrier() && waiter->call.key() == barrier) meeting.emplace(waiter->member, waiter);
  }
  return meeting;
}

// Ends the meeting if all members are there.
void Chief::conclude(const std::string& barrier) {
  const Meeting meeting = meeting_at(barrier);
  if (meeting.size() < members_.size()) return;
  std::vector<std::vector<std::string>> said;
  for (const auto& [member, waiter] : meeting)
    said.emplace_back(waiter->call.lines().begin(), waiter->call.lines().end());
  const auto differ = disagreement(barrier, said, [&](const std::vector<int>& ids) {
    std::vector<WorkerEntry> members;
    for (const int id : ids) members.push_back(member_of(id)->entry);
    return names_of(members);
  });
  const auto answer = differ ? fault_of(FailedPrecondition(errors::kDifferentPrograms, *differ)) : value_of({});
  for (const auto& [member, waiter] : meeting) {
    reply(*waiter, answer);
    waiting_.erase(waiter);
  }
}

std::string Chief::missing_at(const std::string& barrier) const {
  const Meeting meeting = meeting_at(barrier);
  std::vector<std::string> names;
  for (const Member& member : members_) {
    if (!meeting.contains(member.id)) names.push_back(str(to_string(member.entry), ", ", last_seen(member.last)));
  }
  return list_of(names, 4);
}

// Drops the waits of a member that is gone, and fails the barriers at which others wait for it.
void Chief::end_waits_without(const Member& gone) {
  const std::string how = gone.presence == Presence::Left ? " has left the job" : " is lost";
  std::erase_if(waiting_, [&](const Waiter& waiter) {
    if (waiter.member == gone.id) return true;
    if (!waiter.is_at_barrier()) return false;
    const std::string what =
        str(to_string(gone.entry), how, ", so barrier \"", waiter.call.key(), "\" cannot complete");
    reply(waiter, fault_of(Unavailable(errors::kPeerLost,
                                       {.what = what,
                                        .where = last_seen(gone.last),
                                        .help = str("let ", gone.entry.name(), " take part before it leaves")})));
    return true;
  });
}

void Chief::check_waits(Time now) {
  const auto is_late = [&](const Waiter& waiter) { return now >= waiter.until; };
  for (const Waiter& waiter : waiting_) {
    const std::string &key = waiter.call.key(), waited = seconds_text(now - waiter.since);
    if (is_late(waiter)) {
      ErrorText text{.what = str("the key \"", key, "\" was never set"), .help = "let a worker set it, or wait longer"};
      if (waiter.is_at_barrier()) {
        text = {.what = str("barrier \"", key, "\": not all workers came in time"),
                .where = str("missing: ", missing_at(key)),
                .help = "look at what the missing workers do, or wait longer"};
      }
      text.seen = str("waited ", waited);
      reply(waiter, fault_of(DeadlineExceeded(errors::kTimeout, std::move(text))));
    } else if (waiter.is_at_barrier() && now - waiter.since >= options_.slow_warning && warned_.insert(key).second) {
      const auto message =
          warning_of(str("barrier \"", key, "\" has waited for ", waited, "; missing: ", missing_at(key)));
      for (const auto& [member, other] : meeting_at(key)) send(member_of(member)->connection, message);
    }
  }
  // A member that gave up may come again; until then it has not arrived.
  std::erase_if(waiting_, is_late);
  std::erase_if(warned_, [&](const std::string& barrier) { return meeting_at(barrier).empty(); });
}

void Chief::reply(const Waiter& waiter, wire::FromChief answer) {
  answer.set_request(waiter.request);
  send(member_of(waiter.member)->connection, std::move(answer));
}

}  // namespace lockstep::coordination
