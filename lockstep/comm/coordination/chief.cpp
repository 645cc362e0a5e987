#include "lockstep/comm/coordination/chief.h"

#include <algorithm>

#include "lockstep/base/logging.h"
#include "lockstep/base/random_bytes.h"
#include "lockstep/base/text.h"
#include "lockstep/base/throw_error.h"
#include "lockstep/comm/coordination/credentials.h"
#include "lockstep/comm/coordination/silence.h"

namespace lockstep::coordination {
namespace {

std::uint64_t random_generation() {
  std::uint64_t number = 0;
  for (const char byte : random_bytes(8)) number = number << 8 | static_cast<unsigned char>(byte);
  return number | 1;  // 0 means none
}

}  // namespace

Chief::Chief(const JoinOptions& options, std::string key, Outbox& outbox, Time now)
    : options_(options), key_(std::move(key)), outbox_(outbox), generation_(random_generation()), last_tick_(now) {
  for (const WorkerEntry& member : options_.members) members_.push_back({static_cast<int>(members_.size()), member});
}

void Chief::received(Connection connection, const std::string& bytes, Time now) {
  const auto found = sessions_.find(connection);
  if (found == sessions_.end()) return;
  Session& session = found->second;
  if (session.stage == Stage::Opened && bytes.size() > kMaxHello)
    return drop_unknown(connection, "a long introduction");
  wire::ToChief message;
  if (!message.ParseFromString(bytes)) return drop_unknown(connection, "bytes that are not a message");
  try {
    if (session.stage == Stage::Opened) return hello(connection, session, message);
    if (session.stage == Stage::Challenged) return proof(connection, session, message, now);
  } catch (const Error& refusal) {
    send(connection, fault_of(refusal));
    return end(connection);
  }
  if (message.generation() != generation_ || !same_bytes(message.token(), session.token)) {
    return drop_unknown(connection, "a message with the token of another session");
  }
  Member& member = *member_of(session.hello.member());
  if (member.connection != connection) return;
  if (message.has_beat()) return beat(member, message.beat(), now);
  if (message.has_fault()) {
    Error failure = error_from(message.fault());
    failure.add_where(str("reported by ", to_string(member.entry), ", ", last_seen(member.last)));
    return fail(failure);
  }
  if (message.body_case() == wire::ToChief::kCutFrom) return cut(member, message.cut_from(), now);
  serve(member, message.request(), message.call(), now);
}

void Chief::closed(Connection connection, Time now) {
  const auto session = sessions_.extract(connection);
  if (session.empty() || session.mapped().stage != Stage::Seated) return;
  Member& member = *member_of(session.mapped().hello.member());
  if (member.connection != connection || member.presence != Presence::Here) return;
  lose(member, "ended without leaving", "its connection was closed", now);
}

void Chief::lose(Member& member, const std::string& how, const std::string& seen, Time now) {
  member.presence = started_ ? Presence::Lost : Presence::Absent;
  if (!started_) {
    end_waits_without(member);
    member.connection = 0;
    if (failure_) return;
    return say_warning(
        str(to_string(member.entry), " ", how, " before the job started (", seen, "); waiting for it to come back"));
  }
  std::vector<WorkerEntry> fine;
  for (const Member& other : members_) {
    const bool answers = other.presence == Presence::Here && now - other.last_beat < options_.dead_after / 2;
    if (answers) fine.push_back(other.entry);
  }
  const std::string others =
      fine.empty() ? "no other worker answers" : str(names_of(fine), fine.size() == 1 ? " is fine" : " are fine");
  fail(Unavailable(
      &member == &chief() ? errors::kChiefGone : errors::kPeerLost,
      {.what = str(to_string(member.entry), " ", how),
       .where = last_seen(member.last),
       .seen = str(seen, "; ", others),
       .help = str("look at ", member.entry.name(), "'s log; `lockstep explain L", errors::kPeerLost, "`")}));
  end_waits_without(member);
}

void Chief::beat(Member& member, const std::string& place, Time now) {
  const auto gap = now - member.last_beat;
  member.last_beat = now;
  member.answers = {};
  if (gap > steady_within(options_)) member.steady_since = now;
  member.last.set_place(place.substr(0, kMaxPlace));
  if (gap > options_.heartbeat_interval + options_.dead_after / 4) {
    say_warning(str(to_string(member.entry), " did not answer for ", seconds_text(gap), " and is back (",
                    last_seen(member.last), ")"));
  }
  wire::FromChief answer;
  answer.set_beat(chief().last.place());
  send(member.connection, std::move(answer));
}

void Chief::fail(const Error& failure) {
  if (failure_) return;
  failure_ = failure;
  tell_all(fault_of(failure));
}

void Chief::tick(Time now) {
  const auto gap = now - last_tick_;
  last_tick_ = now;
  if (gap > options_.heartbeat_interval) {
    // This process itself was suspended. Messages sent meanwhile are still unread, so the time does not count.
    for (Member& member : members_) member.last_beat = std::min(now, member.last_beat + gap);
    if (gap > options_.dead_after / 2) say_warning(str("this process stood still for ", seconds_text(gap)));
  }
  for (Member& member : members_) {
    if (member.presence != Presence::Here || !is_gone(options_, member.last_beat, member.answers, now)) continue;
    if (fail_if_cut_off(now)) break;
    const Connection connection = member.connection;
    lose(member, "stopped answering", str("last heartbeat ", seconds_text(now - member.last_beat), " ago"), now);
    outbox_.close(connection);
  }
  for (auto next = sessions_.begin(); next != sessions_.end();) {
    const auto& [connection, session] = *next++;  // which may be dropped
    const bool is_late = now - session.opened > time_to_introduce_oneself(options_);
    if (session.stage != Stage::Seated && is_late)
      drop_unknown(connection, "a connection that did not introduce itself");
  }
  check_waits(now);
}

std::vector<Chief::Doubted> Chief::in_doubt(Time now) const {
  std::vector<Doubted> doubted;
  for (const Member& member : members_) {
    const bool is_late = member.presence == Presence::Here && now - member.last_beat > doubt_after(options_);
    if (is_late) doubted.push_back({member.id, member.connection});
  }
  return doubted;
}

void Chief::note_answers(int member, const Answers& answers) {
  if (Member* const found = member_of(member)) found->answers = answers;
}

bool Chief::is_admitted(Connection connection) const {
  const auto found = sessions_.find(connection);
  return found != sessions_.end() && found->second.stage == Stage::Seated;
}

std::vector<WorkerEntry> Chief::members(Presence presence) const {
  std::vector<WorkerEntry> found;
  for (const Member& member : members_) {
    if (member.presence == presence) found.push_back(member.entry);
  }
  return found;
}

void Chief::announce(const std::string& missing_text) {
  wire::FromChief message;
  message.mutable_notice()->set_line(str("waiting for ", missing_text, "; here: ", names_of(members(Presence::Here))));
  message.mutable_notice()->set_missing(missing_text);
  tell_all(message);
}

wire::FromChief Chief::roster() const {
  wire::FromChief message;
  for (const Member& member : members_) {
    wire::MemberInfo& line = *message.add_roster() = member.last;
    line.set_presence(static_cast<int>(member.presence));
  }
  return message;
}

Chief::Member* Chief::member_of(int member) {
  return member >= 0 && member < std::ssize(members_) ? &members_[static_cast<std::size_t>(member)] : nullptr;
}

void Chief::send(Connection connection, wire::FromChief message) {
  message.set_generation(generation_);
  outbox_.send(connection, std::move(message));
}

void Chief::tell_all(const wire::FromChief& message) {
  // Includes a member just given up: if it is only frozen, it learns why when it wakes.
  for (const Member& member : members_) {
    if (member.connection != 0) send(member.connection, message);
  }
}

}  // namespace lockstep::coordination
