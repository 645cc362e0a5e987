// What a member asks of the chief once it has joined.

#include <algorithm>

#include "coordination.pb.h"
#include "lockstep/base/text.h"
#include "lockstep/comm/coordination/client.h"
#include "lockstep/comm/coordination/words.h"

namespace lockstep::coordination {
namespace {

std::int64_t wait_of(const Deadline& deadline) {
  if (deadline.is_never()) return -1;
  return std::chrono::ceil<std::chrono::milliseconds>(deadline.remaining()).count();
}

template <class Condition>
bool wait_until(std::condition_variable& changed, std::unique_lock<std::mutex>& lock, const Deadline& deadline,
                Condition condition) {
  if (deadline.is_never()) {
    changed.wait(lock, condition);
    return true;
  }
  return changed.wait_until(lock, Deadline::Clock::now() + deadline.remaining(), condition);
}

}  // namespace

void Client::require_joined() const {
  if (failure_) failure_->raise();
  if (stage_ == Stage::Joined) return;
  throw FailedPrecondition(errors::kWrongContext, {.what = str(self_.name, " has left the job"),
                                                   .help = "make the call before leave, or join again"});
}

std::string Client::ask(wire::ToChief message) {
  std::unique_lock lock(mutex_);
  require_joined();
  const std::uint64_t request = next_request_++;
  const auto answer = std::make_shared<std::optional<wire::Reply>>();
  answers_[request] = answer;
  message.set_request(request);
  lock = post(std::move(lock), std::move(message));
  // No deadline of its own: the chief answers at the request's, and if it does not, the heartbeats notice.
  changed_.wait(lock, [&] { return *answer || failure_ || stage_ != Stage::Joined; });
  answers_.erase(request);
  if (!*answer) require_joined();
  if (!*answer) throw Internal(errors::kInternal, {.what = "the chief gave no answer", .help = "report this"});
  if ((*answer)->failed()) {
    Failure failure = read((*answer)->fault());
    if (failure.number == errors::kPeerLost) {
      // The job's failure is on its way and says more. After any other answer, it is only what that led to elsewhere.
      changed_.wait_for(lock, std::chrono::milliseconds(20), [&] { return failure_.has_value(); });
      if (failure_) failure_->raise();
    }
    failure.raise();
  }
  if ((*answer)->has_roster()) roster_ = read((*answer)->roster(), options_.members);
  return (*answer)->value();
}

std::string Client::meet(const std::string& name, const std::vector<std::string>* lines, Deadline deadline) {
  const std::string counter = (lines ? "compare " : "barrier ") + name;
  wire::ToChief message;
  wire::Meet& meet = *message.mutable_meet();
  meet.set_name(name);
  meet.set_wait_ms(wait_of(deadline));
  meet.set_compare(lines != nullptr);
  if (lines) {
    for (const std::string& line : *lines) meet.add_lines(line);
  }
  {
    const std::lock_guard lock(mutex_);
    // Even and odd rounds, so that a barrier and a comparison of one name do not meet.
    meet.set_round(2 * rounds_[counter] + (lines ? 1 : 0));
  }
  const auto next_round = [&] {
    const std::lock_guard lock(mutex_);
    ++rounds_[counter];
  };
  try {
    std::string value = ask(std::move(message));
    next_round();
    return value;
  } catch (const DeadlineExceeded&) {
    throw;  // this one may come again
  } catch (const Error&) {
    next_round();
    throw;
  }
}

std::vector<MemberState> Client::states() {
  if (!failure()) {
    wire::ToChief message;
    message.mutable_roster();
    ask(std::move(message));
  }
  const std::lock_guard lock(mutex_);
  return roster_;
}

void Client::keep(HeldPort port) {
  const std::lock_guard lock(mutex_);
  port_ = std::move(port);
}

void Client::set_place(std::int64_t step, std::string_view place) {
  const std::lock_guard lock(mutex_);
  step_ = step;
  place_.assign(place.substr(0, kMaxPlace));
}

void Client::report(Failure failure) {
  if (failure.member < 0) failure.member = self_.id;
  if (failure.text.help.empty()) failure.text.help = "look at the log of the worker that reported it";
  std::unique_lock lock(mutex_);
  if (failure_ || stage_ != Stage::Joined) return;
  wire::ToChief message;
  write(failure, *message.mutable_fault());
  message.mutable_fault()->set_suspected(failure.member != self_.id);
  // The place of the failure is newer than that of the last heartbeat.
  wire::ToChief beat;
  beat.mutable_beat()->set_step(step_);
  beat.mutable_beat()->set_place(place_);
  lock = post(std::move(lock), std::move(beat));
  post(std::move(lock), std::move(message));
}

std::optional<Failure> Client::failure() const {
  const std::lock_guard lock(mutex_);
  return failure_;
}

std::optional<Failure> Client::wait_for_failure(Deadline deadline) const {
  std::unique_lock lock(mutex_);
  wait_until(changed_, lock, deadline, [&] { return failure_ || stage_ != Stage::Joined; });
  return failure_;
}

void Client::on_failure(std::function<void(const Failure&)> callback) {
  {
    const std::lock_guard lock(mutex_);
    if (!told_) return callbacks_.push_back(std::move(callback));
  }
  callback(*failure());
}

bool Client::leave(Deadline deadline) {
  std::unique_lock lock(mutex_);
  if (failure_ || stage_ != Stage::Joined) return false;
  const std::uint64_t request = next_request_++;
  const auto answer = std::make_shared<std::optional<wire::Reply>>();
  answers_[request] = answer;
  wire::ToChief message;
  message.set_request(request);
  message.mutable_leave();
  lock = post(std::move(lock), std::move(message));
  wait_until(changed_, lock, deadline, [&] { return *answer || failure_; });
  answers_.erase(request);
  stage_ = Stage::Left;
  port_.release();
  changed_.notify_all();
  return answer->has_value();
}

std::uint64_t Client::generation() const {
  const std::lock_guard lock(mutex_);
  return generation_;
}

std::string Client::missing() const {
  const std::lock_guard lock(mutex_);
  return missing_;
}

std::string Client::why_ended() const {
  const std::lock_guard lock(mutex_);
  return why_ended_;
}

}  // namespace lockstep::coordination
