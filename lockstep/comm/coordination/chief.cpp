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
  for (const WorkerEntry& member : options_.members) seats_.push_back({static_cast<int>(seats_.size()), member});
}

void Chief::received(Connection connection, const std::string& bytes, Time now) {
  const auto found = sessions_.find(connection);
  if (found == sessions_.end()) return;
  Session& session = found->second;
  if (session.stage == Stage::Opened && bytes.size() > kMaxHello)
    return drop_stranger(connection, "a long introduction");
  wire::ToChief message;
  if (!message.ParseFromString(bytes)) return drop_stranger(connection, "bytes that are no message");
  try {
    if (session.stage == Stage::Opened) return hello(connection, session, message);
    if (session.stage == Stage::Challenged) return proof(connection, session, message, now);
  } catch (const Error& refusal) {
    send(connection, fault_of(refusal));
    return end(connection);
  }
  if (message.generation() != generation_ || !same_bytes(message.token(), session.token)) {
    return drop_stranger(connection, "a message with the token of another session");
  }
  Seat& seat = *seat_of(session.hello.member());
  if (seat.connection != connection) return;
  if (message.has_beat()) return beat(seat, message.beat(), now);
  if (message.has_fault()) {
    Error failure = error_from(message.fault());
    failure.add_where(str("reported by ", to_string(seat.member), ", ", last_seen(seat.last)));
    return fail(failure);
  }
  if (message.body_case() == wire::ToChief::kCutFrom) return cut(seat, message.cut_from(), now);
  serve(seat, message.request(), message.call(), now);
}

void Chief::closed(Connection connection, Time now) {
  const auto session = sessions_.extract(connection);
  if (session.empty() || session.mapped().stage != Stage::Seated) return;
  Seat& seat = *seat_of(session.mapped().hello.member());
  if (seat.connection != connection || seat.presence != Presence::Here) return;
  lose(seat, "ended without leaving", "its connection was closed", now);
}

void Chief::lose(Seat& seat, const std::string& how, const std::string& seen, Time now) {
  seat.presence = started_ ? Presence::Lost : Presence::Absent;
  if (!started_) {
    end_waits_without(seat);
    seat.connection = 0;
    if (failure_) return;
    return say_warning(
        str(to_string(seat.member), " ", how, " before the job started (", seen, "); waiting for it to come back"));
  }
  std::vector<WorkerEntry> fine;
  for (const Seat& other : seats_) {
    const bool answers = other.presence == Presence::Here && now - other.last_beat < options_.dead_after / 2;
    if (answers) fine.push_back(other.member);
  }
  const std::string others =
      fine.empty() ? "no other worker answers" : str(names_of(fine), fine.size() == 1 ? " is fine" : " are fine");
  fail(Unavailable(
      &seat == &chief() ? errors::kChiefGone : errors::kPeerLost,
      {.what = str(to_string(seat.member), " ", how),
       .where = last_seen(seat.last),
       .seen = str(seen, "; ", others),
       .help = str("look at ", seat.member.name(), "'s log; `lockstep explain L", errors::kPeerLost, "`")}));
  end_waits_without(seat);
}

void Chief::beat(Seat& seat, const std::string& place, Time now) {
  const auto gap = now - seat.last_beat;
  seat.last_beat = now;
  seat.answers = {};
  if (gap > steady_within(options_)) seat.steady_since = now;
  seat.last.set_place(place.substr(0, kMaxPlace));
  if (gap > options_.heartbeat_interval + options_.dead_after / 4) {
    say_warning(str(to_string(seat.member), " did not answer for ", seconds_text(gap), " and is back (",
                    last_seen(seat.last), ")"));
  }
  wire::FromChief answer;
  answer.set_beat(chief().last.place());
  send(seat.connection, std::move(answer));
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
    // This process itself stood still. What others sent meanwhile has yet to be read, so the time does not count.
    for (Seat& seat : seats_) seat.last_beat = std::min(now, seat.last_beat + gap);
    if (gap > options_.dead_after / 2) say_warning(str("this process stood still for ", seconds_text(gap)));
  }
  for (Seat& seat : seats_) {
    if (seat.presence != Presence::Here || !is_gone(options_, seat.last_beat, seat.answers, now)) continue;
    if (fail_if_cut_off(now)) break;
    const Connection connection = seat.connection;
    lose(seat, "stopped answering", str("last heartbeat ", seconds_text(now - seat.last_beat), " ago"), now);
    outbox_.close(connection);
  }
  for (auto next = sessions_.begin(); next != sessions_.end();) {
    const auto& [connection, session] = *next++;  // which may be dropped
    const bool is_late = now - session.opened > time_to_introduce_oneself(options_);
    if (session.stage != Stage::Seated && is_late)
      drop_stranger(connection, "a connection that did not introduce itself");
  }
  check_waits(now);
}

std::vector<Chief::Doubted> Chief::in_doubt(Time now) const {
  std::vector<Doubted> doubted;
  for (const Seat& seat : seats_) {
    const bool is_late = seat.presence == Presence::Here && now - seat.last_beat > doubt_after(options_);
    if (is_late) doubted.push_back({seat.id, seat.connection});
  }
  return doubted;
}

void Chief::note_answers(int member, const Answers& answers) {
  if (Seat* const seat = seat_of(member)) seat->answers = answers;
}

bool Chief::is_seated(Connection connection) const {
  const auto found = sessions_.find(connection);
  return found != sessions_.end() && found->second.stage == Stage::Seated;
}

std::vector<WorkerEntry> Chief::members(Presence presence) const {
  std::vector<WorkerEntry> found;
  for (const Seat& seat : seats_) {
    if (seat.presence == presence) found.push_back(seat.member);
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
  for (const Seat& seat : seats_) {
    wire::Seat& line = *message.add_roster() = seat.last;
    line.set_presence(static_cast<int>(seat.presence));
  }
  return message;
}

Chief::Seat* Chief::seat_of(int member) {
  return member >= 0 && member < std::ssize(seats_) ? &seats_[static_cast<std::size_t>(member)] : nullptr;
}

void Chief::send(Connection connection, wire::FromChief message) {
  message.set_generation(generation_);
  outbox_.send(connection, std::move(message));
}

void Chief::tell_all(const wire::FromChief& message) {
  // Also to one that was just given up: if it is only frozen, it learns why when it wakes.
  for (const Seat& seat : seats_) {
    if (seat.connection != 0) send(seat.connection, message);
  }
}

}  // namespace lockstep::coordination
