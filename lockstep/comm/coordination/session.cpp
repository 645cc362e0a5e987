// Unsolicited messages between a member and the chief: introductions, heartbeats, news.

#include <unistd.h>

#include <algorithm>

#include "lockstep/base/logging.h"
#include "lockstep/base/random_bytes.h"
#include "lockstep/base/text.h"
#include "lockstep/base/throw_error.h"
#include "lockstep/comm/coordination/coordinator.h"
#include "lockstep/comm/coordination/credentials.h"
#include "lockstep/comm/coordination/silence.h"
#include "lockstep/comm/coordination/wire.h"
#include "lockstep/comm/socket.h"

namespace lockstep::coordination {

std::shared_ptr<Wire> Coordinator::introduce(const std::string& target, bool port_taken) {
  Lock lock(mutex_);
  stage_ = Stage::Introduced;
  port_taken_ = port_taken;
  generation_ = 0;
  chief_has_proved_itself_ = false;
  token_.clear();
  nonce_ = random_bytes(kNonceBytes);
  wire::ToChief message;
  message.mutable_hello()->set_protocol(kProtocol);
  message.mutable_hello()->set_member(options_.self);
  message.mutable_hello()->set_nonce(nonce_);
  lock.unlock();
  std::shared_ptr<Wire> wire = connect(target, chief_.address.host, options_.tls,
                                       {.received = [this](const wire::FromChief& from) { received(from); },
                                        .ended = [this](const std::string& why) { ended(why); }});
  lock.lock();
  wire_ = wire;
  chief_target_ = target;
  post(lock, std::move(message));
  return wire;
}

// gRPC must not be called under the lock.
void Coordinator::post(Lock& lock, wire::ToChief message) {
  message.set_generation(generation_);
  message.set_token(token_);
  std::shared_ptr<Wire> wire = wire_;
  if (!wire) return;
  lock.unlock();
  wire->send(message);
  wire.reset();  // if the session ended meanwhile, this waits for gRPC too
  lock.lock();
}

void Coordinator::post_beat(Lock& lock) {
  wire::ToChief beat;
  beat.set_beat(place_);
  post(lock, std::move(beat));
}

void Coordinator::end_session() {
  Lock lock(mutex_);
  const std::shared_ptr<Wire> wire = std::move(wire_);
  if (stage_ != Stage::Left) stage_ = Stage::Out;
  lock.unlock();
  changed_.notify_all();
  if (wire) wire->cut();
}

void Coordinator::challenged(const wire::Greeting& challenge, Lock& lock) {
  if (!same_bytes(challenge.mac(), mac_of(key_, {"chief", nonce_, challenge.nonce()}))) {
    failure_ = FailedPrecondition(
        errors::kJobKey,
        {.what = str(self_.name(), " and the chief (", to_string(chief_.address), ") have no job key in common"),
         .seen = key_.empty()          ? "the chief has a job key and this worker has none"
                 : challenge.has_key() ? "the chief's job key does not match"
                                       : "this worker has a job key and the chief has none",
         .help = "give all workers the same LOCKSTEP_JOB_KEY_FILE"});
    return;
  }
  chief_has_proved_itself_ = true;
  wire::Details details;
  details.set_incarnation(options_.incarnation);
  details.mutable_info()->set_host(host_name());
  details.mutable_info()->set_pid(::getpid());
  details.set_port_taken(port_taken_);
  details.set_cluster(options_.cluster);
  details.set_machine(options_.machine);
  wire::ToChief answer;
  wire::Greeting& proof = *answer.mutable_proof();
  proof.set_details(details.SerializeAsString());
  proof.set_mac(mac_of(key_, {"member", nonce_, challenge.nonce(), std::to_string(options_.self), proof.details()}));
  post(lock, std::move(answer));
}

void Coordinator::received(const wire::FromChief& message) {
  Lock lock(mutex_);
  last_heard_ = Clock::now();
  if (generation_ != 0 && message.generation() != generation_) return;
  if (message.request() != 0) {
    if (const auto found = answers_.find(message.request()); found != answers_.end())
      found->second = std::make_shared<const wire::FromChief>(message);
  } else if (message.has_challenge() && !failure_) {
    challenged(message.challenge(), lock);
  } else if (message.has_token() && chief_has_proved_itself_) {
    generation_ = message.generation();
    token_ = message.token();
    stage_ = Stage::Accepted;
  } else if (message.roster_size() > 0 && !token_.empty()) {
    *roster_ = message;
    stage_ = Stage::Joined;
  } else if (message.has_beat() && roster_->roster_size() > 0) {
    roster_->mutable_roster(options_.chief)->set_place(message.beat());
  } else if (message.has_fault() && !failure_) {
    failure_ = error_from(message.fault());
  } else if (message.has_notice()) {
    if (!message.notice().missing().empty()) missing_ = message.notice().missing();
    lock.unlock();  // a log sink is the program's code
    log(message.notice().warning() ? Severity::Warning : Severity::Info,
        str(self_.name(), ": ", message.notice().line()));
    lock.lock();
  }
  changed_.notify_all();
}

void Coordinator::ended(const std::string& why) {
  const std::lock_guard lock(mutex_);
  why_ended_ = why;
  // The chief may end as soon as it has answered the last member, before that member has read the answer.
  if (leaving_) stage_ = Stage::Left;
  if (stage_ == Stage::Joined) {
    chief_is_gone("ended without leaving", "its connection was closed");
  } else if (stage_ != Stage::Left) {
    stage_ = Stage::Out;
  }
  if (options_.tls.any() && is_tls_failure(why) && !failure_) {
    failure_ = FailedPrecondition(
        errors::kJobKey,
        {.what = str(self_.name(), " and the chief (", to_string(chief_.address),
                     ") do not accept each other's certificates"),
         .seen = why,
         .help = "give all workers certificates of the same authority, each with the host of the worker's "
                 "entry as its subjectAltName"});
  }
  changed_.notify_all();
}

void Coordinator::chief_is_gone(const std::string& how, const std::string& seen) {
  if (failure_) return;
  failure_ = Unavailable(errors::kChiefGone,
                         {.what = str(to_string(chief_), ", the chief, ", how),
                          .where = str(last_seen(roster_->roster(options_.chief)), "; seen by ", self_.name()),
                          .seen = seen,
                          .help = str("look at ", chief_.name(), "'s log; if it still runs, at the network between")});
}

void Coordinator::check_chief(Clock::time_point now, std::optional<WayProbe>& probe) {
  if (!is_in_session() || now - last_heard_ < doubt_after(options_)) return probe.reset();
  if (!probe) probe.emplace(look_up(parse_address(chief_target_)).front());
  probe->ask(now);
  if (!is_gone(options_, last_heard_, probe->answers(), now)) return;
  if (stage_ == Stage::Joined)
    chief_is_gone("stopped answering", str("last heard from it ", seconds_text(now - last_heard_), " ago"));
  else
    stage_ = Stage::Out;
  changed_.notify_all();
}

void Coordinator::heartbeat_loop() {
  constexpr std::chrono::milliseconds kLookInDoubt(50);
  std::optional<WayProbe> probe;  // probe of the chief's machine, while it is silent
  Lock lock(mutex_);
  for (auto last = Clock::now(), last_look = last; !over_;) {
    const auto next_beat = last + options_.heartbeat_interval;
    // Checking too late would miss the end of a pause, after which the chief gets time.
    const auto next_look = probe             ? last_look + kLookInDoubt
                           : is_in_session() ? last_heard_ + doubt_after(options_)
                                             : next_beat;
    changed_.wait_until(lock, std::min(next_beat, next_look), [&] { return over_ || (failure_ && !told_); });
    const auto now = last_look = Clock::now();
    const auto gap = now - last;
    if (failure_ && !told_) {
      told_ = true;
      const auto callbacks = std::move(callbacks_);
      const Error failure = *failure_;
      lock.unlock();
      for (const auto& callback : callbacks) callback(failure);
      lock.lock();
    }
    // If this process itself was suspended, the chief's answers are still unread.
    if (gap > 2 * options_.heartbeat_interval) last_heard_ = std::min(now, last_heard_ + gap);
    check_chief(now, probe);
    if (gap < options_.heartbeat_interval) continue;
    last = now;
    close_waiting_connections(port_);
    if (is_in_session()) post_beat(lock);
  }
}

}  // namespace lockstep::coordination
