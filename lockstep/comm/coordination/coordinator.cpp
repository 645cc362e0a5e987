// A member's requests to the chief once it has joined.

#include "lockstep/comm/coordination/coordinator.h"

#include <algorithm>

#include "lockstep/base/logging.h"
#include "lockstep/base/text.h"
#include "lockstep/base/throw_error.h"
#include "lockstep/comm/coordination/chief.h"
#include "lockstep/comm/coordination/silence.h"
#include "lockstep/comm/coordination/wire.h"

namespace lockstep::coordination {
namespace {

wire::Call call_of(wire::Call::Verb verb, std::string_view key = {}, const Deadline& deadline = Deadline::never()) {
  wire::Call call;
  call.set_verb(verb);
  call.set_key(std::string(key.substr(0, kMaxKey)));
  call.set_wait_ms(deadline.is_never() ? -1
                                       : std::chrono::ceil<std::chrono::milliseconds>(deadline.remaining()).count());
  return call;
}

// For condition variables, which overflow with an infinite deadline.
std::chrono::nanoseconds remaining(const Deadline& deadline) {
  return std::min<std::chrono::nanoseconds>(deadline.remaining(), std::chrono::hours(24 * 365));
}

void check_size(const std::string& what, std::size_t size, std::size_t most, const char* help) {
  if (size > most) {
    throw InvalidArgument(errors::kBadOption,
                          {.what = str(what, " must have at most ", most, " bytes, got ", size), .help = help});
  }
}

}  // namespace

Coordinator::Coordinator(const JoinOptions& options, std::string key)
    : options_(options), key_(std::move(key)), roster_(std::make_shared<wire::FromChief>()) {}

Coordinator::~Coordinator() {
  try {
    if (std::uncaught_exceptions() > exceptions_) {
      report_failure(Unavailable(errors::kPeerFailed,
                                 {.what = str("the program of ", to_string(self_), " ended with an exception"),
                                  .help = str("look at the log of ", self_.name())}));
      wait_for_failure(Deadline::after(std::chrono::milliseconds(300)));
    }
    leave(Deadline::after(options_.leave_timeout));
  } catch (const std::exception& error) {
    say_warning(error.what());
  }
  end_session();
  {
    const std::lock_guard lock(mutex_);
    over_ = true;
  }
  changed_.notify_all();
  heartbeat_thread_.join();
}

void Coordinator::require_joined() const {
  if (failure_) throw_error(*failure_);
  if (stage_ == Stage::Joined) return;
  throw FailedPrecondition(errors::kWrongContext, {.what = str(self_.name(), " has left the job"),
                                                   .help = "make the call before leave, or join again"});
}

// The chief's answer; none if the session, the job or the time ends first.
std::shared_ptr<const wire::FromChief> Coordinator::exchange(Lock& lock, wire::Call call, const Deadline& deadline) {
  const std::uint64_t request = next_request_++;
  const auto& answer = answers_[request];
  wire::ToChief message;
  message.set_request(request);
  *message.mutable_call() = std::move(call);
  post(lock, std::move(message));
  changed_.wait_for(lock, remaining(deadline), [&] { return answer || failure_ || stage_ != Stage::Joined; });
  return std::move(answers_.extract(request).mapped());
}

wire::FromChief Coordinator::ask(wire::Call call) {
  Lock lock(mutex_);
  require_joined();
  // Without a deadline: the chief answers at the request's, and if it does not, the heartbeats notice.
  const auto answer = exchange(lock, std::move(call), Deadline::never());
  if (!answer) require_joined();
  if (!answer->has_fault()) return *answer;
  const Error error = error_from(answer->fault());
  if (error.number() == errors::kPeerLost) {
    // The job's failure is on its way and more precise. After any other answer, an error here is only a consequence.
    changed_.wait_for(lock, std::chrono::milliseconds(20), [&] { return failure_.has_value(); });
    if (failure_) throw_error(*failure_);
  }
  throw_error(error);
}

void Coordinator::set(std::string_view key, std::string_view value) {
  constexpr auto kHelp = "store small values; tensors go through collectives";
  check_size("the key of a stored value", key.size(), kMaxKey, kHelp);
  check_size("a stored value", value.size(), kMaxValue, kHelp);
  wire::Call call = call_of(wire::Call::SET, key);
  call.set_value(std::string(value));
  ask(std::move(call));
}

std::string Coordinator::get(std::string_view key, Deadline deadline) {
  return ask(call_of(wire::Call::GET, key, deadline)).value();
}

void Coordinator::require_same(std::string_view name, const std::vector<std::string>& lines, Deadline deadline) {
  wire::Call call = call_of(wire::Call::BARRIER, name, deadline);
  call.mutable_lines()->Assign(lines.begin(), lines.end());
  check_size("lines to compare", call.ByteSizeLong(), kMaxValue, "compare a digest of them");
  ask(std::move(call));
}

void Coordinator::set_place(std::string_view place) {
  const std::lock_guard lock(mutex_);
  place_ = place.substr(0, kMaxPlace);
}

std::vector<MemberState> Coordinator::states() {
  Lock lock(mutex_);
  if (!failure_ && stage_ == Stage::Joined) {
    if (const auto answer = exchange(lock, call_of(wire::Call::ROSTER), Deadline::never())) *roster_ = *answer;
  }
  if (!failure_ && stage_ != Stage::Joined) return {};
  std::vector<MemberState> states;
  for (int id = 0; id < std::min(roster_->roster_size(), static_cast<int>(options_.members.size())); ++id) {
    const wire::MemberInfo& info = roster_->roster(id);
    const WorkerEntry& member = options_.members[static_cast<std::size_t>(id)];
    states.push_back({id, member, static_cast<Presence>(info.presence()), info.place()});
  }
  return states;
}

void Coordinator::report_failure(const Error& error) {
  wire::ToChief message;
  message.set_fault(to_bytes(error, kMaxFault));
  Lock lock(mutex_);
  if (failure_ || stage_ != Stage::Joined) return;
  post_beat(lock);  // the place of the failure is newer than the last heartbeat's
  post(lock, std::move(message));
}

void Coordinator::report_cut(int member) {
  wire::ToChief message;
  message.set_cut_from(member);
  Lock lock(mutex_);
  if (failure_ || stage_ != Stage::Joined) return;
  // A member that is cut off from the chief too cannot blame a pair. Its report would arrive late, when the cut is
  // over.
  if (Clock::now() - last_heard_ < steady_within(options_)) post(lock, std::move(message));
}

std::optional<Error> Coordinator::failure() const {
  const std::lock_guard lock(mutex_);
  return failure_;
}

std::optional<Error> Coordinator::wait_for_failure(Deadline deadline) const {
  Lock lock(mutex_);
  changed_.wait_for(lock, remaining(deadline), [&] { return failure_ || stage_ != Stage::Joined; });
  const std::optional<Error> failure = failure_;
  const std::shared_ptr<Server> server = failure ? server_ : nullptr;
  lock.unlock();
  if (server) server->flush();
  return failure;
}

void Coordinator::on_failure(std::function<void(const Error&)> callback) {
  Lock lock(mutex_);
  if (!told_) return callbacks_.push_back(std::move(callback));
  lock.unlock();
  callback(*failure());
}

void Coordinator::leave(Deadline deadline) {
  Lock lock(mutex_);
  const bool asks = !failure_ && stage_ == Stage::Joined;
  leaving_ = asks;
  const bool left = asks && exchange(lock, call_of(wire::Call::LEAVE), deadline);
  if (asks) stage_ = Stage::Left;
  if (asks || failure_) port_.close();
  changed_.notify_all();
  if (!left && !failure_) return;
  const std::shared_ptr<Server> server = std::move(server_);
  lock.unlock();
  if (left && server) wait_for_others_to_leave(*server, deadline);
  end_session();
}

// The service ends with this process.
void Coordinator::wait_for_others_to_leave(Server& server, const Deadline& deadline) {
  auto next_line = Clock::now() + options_.waiting_log_interval;
  const auto others = [&] {
    std::vector<WorkerEntry> here;
    server.with_chief([&](Chief& chief) { here = chief.members(Presence::Here); });
    return names_of(here);
  };
  while (!others().empty() && !deadline.expired() && !failure()) {
    if (Clock::now() >= next_line) {
      say_info(str(self_.name(), ": waiting for ", others(), " to leave"));
      next_line += options_.waiting_log_interval;
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(2));
  }
  const std::string late = others();
  server.with_chief([&](Chief& chief) {
    chief.fail(Unavailable(errors::kChiefGone, {.what = str(to_string(self_), ", the chief, has left the job"),
                                                .seen = late.empty() ? "" : str("still here: ", late),
                                                .help = "let the chief leave last, or give it more time in leave"}));
  });
}

}  // namespace lockstep::coordination
