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

std::string last_seen(const wire::MemberInfo& info) {
  const std::string place = info.place().empty() ? "" : str("last seen in ", info.place(), "; ");
  return str(place, "host ", info.host(), ", pid ", info.pid());
}

std::string names_of(const std::vector<WorkerEntry>& members) {
  std::vector<std::string> names;
  for (const WorkerEntry& member : members) names.push_back(member.name());
  return list_of(names);
}

std::string seconds_text(std::chrono::nanoseconds time) {
  const double seconds = std::chrono::duration<double>(time).count();
  return str(std::fixed, std::setprecision(seconds < 0.1 ? 3 : 1), seconds, " s");
}

}  // namespace lockstep::coordination
