#include "lockstep/comm/coordination/messages.h"

#include <algorithm>

#include "lockstep/base/text.h"

namespace lockstep::coordination {

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
  const ErrorText text{.what = from.what(), .where = from.where(), .seen = from.seen(), .help = from.help()};
  const int code = std::clamp(from.code(), 0, static_cast<int>(Code::Internal));
  return {static_cast<Code>(code), from.number(), text, from.member()};
}

std::vector<MemberState> read(const wire::Roster& from, const std::vector<Member>& members) {
  std::vector<MemberState> states;
  for (const wire::Seat& seat : from.seats()) {
    const auto member = std::ranges::find(members, seat.id(), &Member::id);
    if (member == members.end()) continue;
    states.push_back(
        {*member, static_cast<Presence>(seat.presence()), seat.host(), seat.pid(), seat.step(), seat.place()});
  }
  return states;
}

std::string place_text(std::int64_t step, const std::string& place) {
  std::string text = step == 0 ? "" : str("call ", step, " of run");
  if (!place.empty() && (text.empty() || place != "run")) text += str(text.empty() ? "" : ", ", place);
  return text;
}

std::string last_seen(const wire::Seat& seat) {
  const std::string place = place_text(seat.step(), seat.place());
  return str(place.empty() ? "" : "last heard of in ", place, place.empty() ? "host " : "; host ", seat.host(),
             ", pid ", seat.pid());
}

}  // namespace lockstep::coordination
