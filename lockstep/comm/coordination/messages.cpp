#include "lockstep/comm/coordination/messages.h"

#include "coordination.pb.h"

namespace lockstep::coordination {

void Failure::raise() const {
  switch (code) {
    case Code::InvalidArgument: throw InvalidArgument(number, text);
    case Code::FailedPrecondition: throw FailedPrecondition(number, text);
    case Code::OutOfRange: throw OutOfRange(number, text);
    case Code::NotFound: throw NotFound(number, text);
    case Code::AlreadyExists: throw AlreadyExists(number, text);
    case Code::Unavailable: throw Unavailable(number, text);
    case Code::DeadlineExceeded: throw DeadlineExceeded(number, text);
    case Code::DataLoss: throw DataLoss(number, text);
    case Code::ResourceExhausted: throw ResourceExhausted(number, text);
    case Code::Cancelled: throw Cancelled(number, text);
    case Code::Unimplemented: throw Unimplemented(number, text);
    case Code::Internal: break;
  }
  throw Internal(number, text);
}

void write(const Failure& failure, wire::Fault& to) {
  // A text that is too long for a message would end the stream instead of the job.
  const auto bounded = [](const std::string& text) { return text.substr(0, 16 << 10); };
  to.set_number(failure.number);
  to.set_code(static_cast<int>(failure.code));
  to.set_member(failure.member);
  to.set_what(bounded(failure.text.what));
  to.set_where(bounded(failure.text.where));
  to.set_seen(bounded(failure.text.seen));
  to.set_help(bounded(failure.text.help));
}

Failure read(const wire::Fault& from) {
  const bool known = from.code() >= 0 && from.code() <= static_cast<int>(Code::Internal);
  return {.code = known ? static_cast<Code>(from.code()) : Code::Internal,
          .number = from.number(),
          .text = {.what = from.what(), .where = from.where(), .seen = from.seen(), .help = from.help()},
          .member = from.member()};
}

std::vector<Fact> facts_of(const wire::Details& details) {
  std::vector<Fact> facts;
  for (const wire::Fact& fact : details.facts()) {
    facts.push_back({.name = fact.name(), .value = fact.value(), .may_differ = fact.may_differ()});
  }
  return facts;
}

std::vector<MemberState> read(const wire::Roster& from, const std::vector<Member>& members) {
  std::vector<MemberState> states;
  for (const Member& member : members) states.push_back({.member = member});
  for (const wire::Seat& seat : from.seats()) {
    for (MemberState& state : states) {
      if (state.member.id != seat.id()) continue;
      state.presence = static_cast<Presence>(seat.presence());
      state.host = seat.host();
      state.pid = seat.pid();
      state.silent = std::chrono::milliseconds(seat.silent_ms());
      state.step = seat.step();
      state.place = seat.place();
    }
  }
  return states;
}

}  // namespace lockstep::coordination
