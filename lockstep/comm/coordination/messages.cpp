#include "lockstep/comm/coordination/messages.h"

#include <iomanip>

#include "lockstep/base/text.h"
#include "lockstep/base/throw_error.h"
#include "lockstep/comm/disagreement.h"

namespace lockstep::coordination {

wire::FromChief fault_of(const Error& error) {
  wire::FromChief message;
  message.set_fault(to_bytes(error, kMaxFault));
  return message;
}

wire::FromChief value_of(std::string value) {
  wire::FromChief message;
  message.set_value(std::move(value));
  return message;
}

wire::FromChief warning_of(std::string line) {
  wire::FromChief message;
  message.mutable_notice()->set_warning(true);
  message.mutable_notice()->set_line(std::move(line));
  return message;
}

std::vector<MemberState> read(const wire::Roster& from, const std::vector<Member>& members) {
  std::vector<MemberState> states;
  for (const wire::Seat& seat : from.seats()) {
    const auto member = std::ranges::find(members, seat.id(), &Member::id);
    if (member == members.end()) continue;
    states.push_back({*member, static_cast<Presence>(seat.presence()), seat.step(), seat.place()});
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

std::string title(const Member& member) { return str(member.name, " (", member.address, ")"); }

std::string names_of(const std::vector<Member>& members) {
  std::vector<std::string> names;
  for (const Member& member : members) names.push_back(member.name);
  return list_of(names);
}

std::string seconds_text(std::chrono::nanoseconds time) {
  const double seconds = std::chrono::duration<double>(time).count();
  return str(std::fixed, std::setprecision(seconds < 0.1 ? 3 : 1), seconds, " s");
}

}  // namespace lockstep::coordination
