// What the chief does for members of a running job: the store, barriers and comparisons.

#include <algorithm>

#include "coordination.pb.h"
#include "lockstep/base/logging.h"
#include "lockstep/base/text.h"
#include "lockstep/comm/coordination/chief.h"
#include "lockstep/comm/coordination/words.h"

namespace lockstep::coordination {
namespace {

std::optional<Chief::Time> end_of_wait(std::int64_t wait_ms, Chief::Time now) {
  // More than a year is as good as for ever, and cannot overflow.
  if (wait_ms < 0 || wait_ms > 366LL * 24 * 3600 * 1000) return std::nullopt;
  return now + std::chrono::milliseconds(wait_ms);
}

std::string kind_of(bool compare) { return compare ? "comparison" : "barrier"; }

}  // namespace

void Chief::serve(const Session& session, const wire::ToChief& message, Connection connection, Time now) {
  Waiter waiter{.connection = connection, .request = message.request(), .member = session.member, .since = now};
  switch (message.body_case()) {
    case wire::ToChief::kSet: return set(waiter, message.set().key(), message.set().value());
    case wire::ToChief::kGet:
      waiter.until = end_of_wait(message.get().wait_ms(), now);
      if (const auto found = store_.find(message.get().key()); found != store_.end()) {
        return reply_value(waiter, found->second);
      }
      waiting_for_key_.emplace_back(message.get().key(), waiter);
      return;
    case wire::ToChief::kMeet:
      waiter.until = end_of_wait(message.meet().wait_ms(), now);
      return meet(waiter, message.meet());
    case wire::ToChief::kRoster: {
      wire::FromChief answer;
      answer.set_request(waiter.request);
      write_roster(*answer.mutable_reply()->mutable_roster(), now);
      return send(connection, std::move(answer));
    }
    case wire::ToChief::kLeave: return reply_value(waiter, {});
    default: return drop_stranger(connection, "a message of an unknown kind");
  }
}

void Chief::set(const Waiter& waiter, const std::string& key, const std::string& value) {
  const auto found = store_.find(key);
  const std::size_t before = found == store_.end() ? 0 : key.size() + found->second.size();
  const std::size_t after = stored_bytes_ - before + key.size() + value.size();
  if (after > kMaxStore) {
    return reply_error(
        waiter,
        {.code = Code::ResourceExhausted,
         .number = errors::kBadOption,
         .text = {.what = str("the job's store is full: it holds at most ", kMaxStore >> 20, " MB"),
                  .seen = str(counted(static_cast<long long>(store_.size()), "key"), ", ", stored_bytes_, " bytes"),
                  .help = "store addresses and small values only; tensors go through collectives"},
         .member = waiter.member});
  }
  stored_bytes_ = after;
  store_[key] = value;
  reply_value(waiter, {});
  std::erase_if(waiting_for_key_, [&](const auto& waiting) {
    if (waiting.first != key) return false;
    reply_value(waiting.second, value);
    return true;
  });
}

void Chief::meet(const Waiter& waiter, const wire::Meet& meet) {
  const MeetingKey key{meet.name(), meet.round()};
  Meeting& meeting = meetings_[key];
  meeting.compare = meeting.compare || meet.compare();
  meeting.arrived[waiter.member] = waiter;
  std::vector<std::string> lines(meet.lines().begin(), meet.lines().end());
  const auto same = std::find_if(meeting.groups.begin(), meeting.groups.end(),
                                 [&](const Meeting::Group& group) { return group.lines == lines; });
  if (same != meeting.groups.end()) {
    same->members.push_back(waiter.member);
  } else {
    meeting.groups.push_back({.lines = std::move(lines), .members = {waiter.member}});
  }
  for (const Seat& seat : seats_) {
    if (seat.presence == Presence::Left || seat.presence == Presence::Lost) return fail_meetings_without(seat);
  }
  if (meeting.arrived.size() == seats_.size()) conclude(key, meeting);
}

void Chief::conclude(const MeetingKey& key, Meeting& meeting) {
  if (meeting.groups.size() > 1) {
    // The largest group is probably right; between equal ones, that of the lowest id.
    for (Meeting::Group& group : meeting.groups) std::sort(group.members.begin(), group.members.end());
    std::sort(meeting.groups.begin(), meeting.groups.end(), [](const Meeting::Group& a, const Meeting::Group& b) {
      return std::pair(b.members.size(), a.members.front()) < std::pair(a.members.size(), b.members.front());
    });
    const auto names = [&](const Meeting::Group& group) {
      std::vector<std::string> all;
      for (const int member : group.members) all.push_back(seat_of(member)->member.name);
      return name_list(all);
    };
    const Meeting::Group& most = meeting.groups[0];
    const Meeting::Group& other = meeting.groups[1];
    const Failure failure{.code = Code::FailedPrecondition,
                          .number = errors::kDifferentPrograms,
                          .text = {.what = str(key.first, " of ", names(other), " differs from that of ", names(most)),
                                   .where = str("found when all ", seats_.size(), " workers compared it"),
                                   .seen = difference(seat_of(most.members.front())->member.name, most.lines,
                                                      seat_of(other.members.front())->member.name, other.lines),
                                   .help = "run the same program with the same arguments on all workers"},
                          .member = other.members.front()};
    for (const auto& [member, waiter] : meeting.arrived) reply_error(waiter, failure);
  } else {
    for (const auto& [member, waiter] : meeting.arrived) reply_value(waiter, {});
  }
  meetings_.erase(key);
}

std::string Chief::missing_in(const Meeting& meeting) const {
  std::vector<std::string> names;
  for (const Seat& seat : seats_) {
    if (!meeting.arrived.contains(seat.member.id)) names.push_back(str(title(seat.member), ", ", last_seen_of(seat)));
  }
  return name_list(names, 4);
}

// Takes a member's arrival back: of one request, or of all.
void Chief::withdraw(int member, std::optional<std::uint64_t> request) {
  for (auto entry = meetings_.begin(); entry != meetings_.end();) {
    Meeting& meeting = entry->second;
    const auto found = meeting.arrived.find(member);
    if (found != meeting.arrived.end() && (!request || found->second.request == *request)) {
      meeting.arrived.erase(found);
      for (Meeting::Group& group : meeting.groups) std::erase(group.members, member);
      std::erase_if(meeting.groups, [](const Meeting::Group& group) { return group.members.empty(); });
    }
    entry = meeting.arrived.empty() ? meetings_.erase(entry) : std::next(entry);
  }
}

void Chief::forget_waits_of(int member) {
  std::erase_if(waiting_for_key_, [&](const auto& waiting) { return waiting.second.member == member; });
  withdraw(member, std::nullopt);
}

void Chief::fail_meetings_without(const Seat& gone) {
  for (const auto& [key, meeting] : meetings_) {
    const Failure failure{
        .code = Code::Unavailable,
        .number = errors::kPeerLost,
        .text = {.what = str(title(gone.member), gone.presence == Presence::Left ? " has left the job" : " is lost",
                             ", so ", kind_of(meeting.compare), " \"", key.first, "\" cannot complete"),
                 .where = last_seen_of(gone),
                 .help = str("let ", gone.member.name, " take part before it leaves")},
        .member = gone.member.id};
    for (const auto& [member, waiter] : meeting.arrived) reply_error(waiter, failure);
  }
  meetings_.clear();
}

void Chief::check_waits(Time now) {
  std::erase_if(waiting_for_key_, [&](const auto& waiting) {
    if (!waiting.second.until || now < *waiting.second.until) return false;
    reply_error(waiting.second, {.code = Code::DeadlineExceeded,
                                 .number = errors::kTimeout,
                                 .text = {.what = str("nobody has set the key \"", waiting.first, "\""),
                                          .seen = str("waited ", seconds_text(now - waiting.second.since)),
                                          .help = "let a worker set it, or wait longer"},
                                 .member = -1});
    return true;
  });
  std::vector<Waiter> late;
  for (auto& [key, meeting] : meetings_) {
    Time first = now;
    for (const auto& [member, waiter] : meeting.arrived) {
      first = std::min(first, waiter.since);
      if (!waiter.until || now < *waiter.until) continue;
      late.push_back(waiter);
      reply_error(waiter,
                  {.code = Code::DeadlineExceeded,
                   .number = errors::kTimeout,
                   .text = {.what = str(kind_of(meeting.compare), " \"", key.first, "\": not all workers came in time"),
                            .where = str("missing: ", missing_in(meeting)),
                            .seen = str("waited ", seconds_text(now - waiter.since)),
                            .help = "look at what the missing workers do, or wait longer"},
                   .member = -1});
    }
    if (meeting.warned || now - first < options_.slow_warning) continue;
    meeting.warned = true;
    wire::FromChief message;
    message.mutable_notice()->set_warning(true);
    message.mutable_notice()->set_line(str(kind_of(meeting.compare), " \"", key.first, "\" has waited for ",
                                           seconds_text(now - first), "; missing: ", missing_in(meeting)));
    for (const auto& [member, waiter] : meeting.arrived) send(waiter.connection, message);
  }
  // Whoever gave up may come again; until then it has not arrived.
  for (const Waiter& waiter : late) withdraw(waiter.member, waiter.request);
}

void Chief::reply_error(const Waiter& waiter, const Failure& failure) {
  wire::FromChief answer;
  answer.set_request(waiter.request);
  answer.mutable_reply()->set_failed(true);
  write(failure, *answer.mutable_reply()->mutable_fault());
  send(waiter.connection, std::move(answer));
}

void Chief::reply_value(const Waiter& waiter, const std::string& value) {
  wire::FromChief answer;
  answer.set_request(waiter.request);
  answer.mutable_reply()->set_value(value);
  send(waiter.connection, std::move(answer));
}

}  // namespace lockstep::coordination
