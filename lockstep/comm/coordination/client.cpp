#include "lockstep/comm/coordination/client.h"

#include <unistd.h>

#include <algorithm>

#include "coordination.pb.h"
#include "lockstep/base/logging.h"
#include "lockstep/base/text.h"
#include "lockstep/comm/coordination/job_key.h"
#include "lockstep/comm/coordination/words.h"

namespace lockstep::coordination {
namespace {

Member find_self(const JoinOptions& options) {
  for (const Member& member : options.members) {
    if (member.id == options.self) return member;
  }
  throw InvalidArgument(errors::kBadOption,
                        {.what = str("JoinOptions::self must be the id of a member, got ", options.self),
                         .help = "take the id from the list of members"});
}

}  // namespace

Client::Client(const JoinOptions& options, std::string key)
    : options_(options), key_(std::move(key)), self_(find_self(options)), heart_([this] { run_heart(); }) {}

Client::~Client() {
  give_up_session();
  {
    const std::lock_guard lock(mutex_);
    over_ = true;
  }
  changed_.notify_all();
  heart_.join();
}

void Client::introduce(std::unique_ptr<Wire> wire, bool port_taken) {
  std::unique_lock lock(mutex_);
  wire_ = std::move(wire);
  stage_ = Stage::Introduced;
  port_taken_ = port_taken;
  generation_ = 0;
  token_.clear();
  nonce_ = random_bytes(kNonceBytes);
  wire::ToChief message;
  message.mutable_hello()->set_protocol(kProtocol);
  message.mutable_hello()->set_member(self_.id);
  message.mutable_hello()->set_nonce(nonce_);
  message.mutable_hello()->set_has_key(!key_.empty());
  const std::shared_ptr<Wire> opened = wire_;
  lock.unlock();
  opened->open([this](const wire::FromChief& from) { received(from); }, [this](const std::string& why) { ended(why); });
  lock.lock();
  post(std::move(lock), std::move(message));
}

// Returns the lock, taken again: gRPC must not be called under it.
std::unique_lock<std::mutex> Client::post(std::unique_lock<std::mutex> lock, wire::ToChief message) {
  message.set_generation(generation_);
  message.set_token(token_);
  const std::shared_ptr<Wire> wire = wire_;
  if (!wire) return lock;
  wire->send(message);
  lock.unlock();
  wire->flush();
  lock.lock();
  return lock;
}

void Client::give_up_session() {
  std::shared_ptr<Wire> wire;
  {
    const std::lock_guard lock(mutex_);
    wire = std::move(wire_);
    if (stage_ != Stage::Left) stage_ = Stage::Out;
  }
  changed_.notify_all();
  if (wire) wire->cut();
}

Client::Stage Client::wait_while(Stage stage, Clock::time_point until) {
  std::unique_lock lock(mutex_);
  changed_.wait_until(lock, until, [&] { return stage_ != stage || failure_; });
  if (failure_) failure_->raise();
  return stage_;
}

void Client::challenged(const wire::FromChief& message, wire::ToChief& answer) {
  const wire::Challenge& challenge = message.challenge();
  if (!same_bytes(challenge.mac(), mac_of(key_, {"chief", nonce_, challenge.nonce()}))) {
    const std::string why = key_.empty()          ? "the chief has a job key and this worker has none"
                            : challenge.has_key() ? "the chief's job key is another one"
                                                  : "this worker has a job key and the chief has none";
    return set_failure({.code = Code::FailedPrecondition,
                        .number = errors::kJobKey,
                        .text = {.what = str(self_.name, " and the chief (", options_.members.front().address,
                                             ") have no job key in common"),
                                 .seen = why,
                                 .help = "give all workers the same LOCKSTEP_JOB_KEY_FILE"},
                        .member = self_.id});
  }
  wire::Details details;
  details.set_incarnation(options_.incarnation);
  details.set_host(host_name());
  details.set_pid(::getpid());
  details.set_port_taken(port_taken_);
  for (const Fact& fact : options_.facts) {
    wire::Fact& line = *details.add_facts();
    line.set_name(fact.name);
    line.set_value(fact.value);
    line.set_may_differ(fact.may_differ);
  }
  answer.mutable_proof()->set_details(details.SerializeAsString());
  answer.mutable_proof()->set_mac(
      mac_of(key_, {"member", nonce_, challenge.nonce(), std::to_string(self_.id), answer.proof().details()}));
}

void Client::received(const wire::FromChief& message) {
  std::unique_lock lock(mutex_);
  last_heard_ = Clock::now();
  if (generation_ != 0 && message.generation() != generation_) return;
  switch (message.body_case()) {
    case wire::FromChief::kChallenge: {
      wire::ToChief answer;
      challenged(message, answer);
      if (answer.has_proof()) lock = post(std::move(lock), std::move(answer));
      break;
    }
    case wire::FromChief::kAccepted:
      generation_ = message.generation();
      token_ = message.accepted().token();
      stage_ = Stage::Accepted;
      break;
    case wire::FromChief::kWelcome:
      roster_ = read(message.welcome(), options_.members);
      stage_ = Stage::Joined;
      break;
    case wire::FromChief::kBeat:
      if (!roster_.empty()) {
        roster_.front().step = message.beat().step();
        roster_.front().place = message.beat().place();
      }
      break;
    case wire::FromChief::kReply:
      if (const auto found = answers_.find(message.request()); found != answers_.end())
        *found->second = message.reply();
      break;
    case wire::FromChief::kFailure: set_failure(read(message.failure())); break;
    case wire::FromChief::kNotice: {
      if (!message.notice().missing().empty()) missing_ = message.notice().missing();
      const std::string line = str(self_.name, ": ", message.notice().line());
      lock.unlock();  // a log sink is the program's code
      message.notice().warning() ? log_warning(line) : log_info(line);
      lock.lock();
      break;
    }
    case wire::FromChief::BODY_NOT_SET: break;
  }
  changed_.notify_all();
}

void Client::ended(const std::string& why) {
  {
    const std::lock_guard lock(mutex_);
    why_ended_ = why;
    if (stage_ == Stage::Joined && !failure_) {
      chief_is_gone("ended without leaving", "its connection was closed");
    } else if (stage_ != Stage::Left) {
      stage_ = stage_ == Stage::Joined ? Stage::Joined : Stage::Out;
    }
  }
  changed_.notify_all();
}

void Client::set_failure(Failure failure) {
  if (!failure_) failure_ = std::move(failure);
}

void Client::chief_is_gone(const std::string& how, const std::string& seen) {
  const MemberState& chief = roster_.front();
  set_failure({.code = Code::Unavailable,
               .number = errors::kChiefGone,
               .text = {.what = str(title(chief.member), ", the chief, ", how),
                        .where = str("last at step ", chief.step, chief.place.empty() ? "" : ", ", chief.place,
                                     "; host ", chief.host, ", pid ", chief.pid, "; seen by ", self_.name),
                        .seen = seen,
                        .help = str("look at ", chief.member.name, "'s log; if it still runs, at the network between")},
               .member = chief.member.id});
}

void Client::check_chief(Clock::time_point now, Clock::duration gap) {
  // If this process itself stood still, the chief's answers have yet to be read.
  if (gap > 2 * options_.heartbeat_interval) last_heard_ = std::min(now, last_heard_ + gap);
  if (now - last_heard_ <= options_.dead_after) return;
  if (stage_ == Stage::Joined) {
    chief_is_gone("stopped answering", str("last heard of it ", seconds_text(now - last_heard_), " ago"));
  } else {
    stage_ = Stage::Out;
  }
  changed_.notify_all();
}

void Client::run_heart() {
  std::unique_lock lock(mutex_);
  for (auto last = Clock::now(); !over_;) {
    changed_.wait_until(lock, last + options_.heartbeat_interval, [&] { return over_ || (failure_ && !told_); });
    const auto now = Clock::now();
    const auto gap = now - last;
    if (failure_ && !told_) {
      told_ = true;
      const auto callbacks = std::move(callbacks_);
      const Failure failure = *failure_;
      lock.unlock();
      for (const auto& callback : callbacks) callback(failure);
      lock.lock();
    }
    if (gap < options_.heartbeat_interval) continue;
    last = now;
    port_.drop_strangers();
    if (failure_ || (stage_ != Stage::Accepted && stage_ != Stage::Joined)) continue;
    check_chief(now, gap);
    wire::ToChief beat;
    beat.mutable_beat()->set_step(step_);
    beat.mutable_beat()->set_place(place_);
    lock = post(std::move(lock), std::move(beat));
  }
}

}  // namespace lockstep::coordination
