// Joining a job: finding the chief, waiting for all members, and logging which ones are missing and why.

#include <algorithm>

#include "lockstep/base/logging.h"
#include "lockstep/base/text.h"
#include "lockstep/base/throw_error.h"
#include "lockstep/comm/coordination/chief.h"
#include "lockstep/comm/coordination/coordinator.h"
#include "lockstep/comm/coordination/credentials.h"
#include "lockstep/comm/coordination/wire.h"
#include "lockstep/comm/disagreement.h"
#include "lockstep/comm/socket.h"

namespace lockstep::coordination {

using std::chrono::milliseconds;

// The chief's limit ends at about the same time as its workers'. It names the missing ones, and a worker that gave up
// earlier would be missing too.
constexpr milliseconds kChiefsWord{2000};

std::unique_ptr<Coordinator> Coordinator::join(JoinOptions options) {
  const std::string key = find_job_key();
  const Address& address = options.members.at(static_cast<std::size_t>(options.chief)).address;
  if (key.empty() && !is_on_loopback(address)) {
    throw FailedPrecondition(errors::kJobKey,
                             {.what = str("a job on ", to_string(address), " needs a job key"),
                              .seen = "only jobs on the loopback address work without one",
                              .help = "set LOCKSTEP_JOB_KEY_FILE to a file of mode 0600 with the same 32 bytes on all "
                                      "hosts; `lockstep run` makes one for you"});
  }
  options.tls = find_tls_files(options.tls);
  std::unique_ptr<Coordinator> made(new Coordinator(options, key));
  made->find_chief_and_wait_for_all();
  return made;
}

Coordinator::Stage Coordinator::wait_while(Stage stage, Clock::time_point until) {
  Lock lock(mutex_);
  changed_.wait_until(lock, until, [&] { return stage_ != stage || failure_; });
  if (failure_) throw_error(*failure_);
  return stage_;
}

// The session ends by itself, with the reason as an exception, unless there is no chief to ask.
void Coordinator::ask_who_holds_the_task() {
  const Reach reach = probe({chief_.address}, milliseconds(200)).front();
  if (!reach.answers()) return;
  try {
    const std::shared_ptr<const Wire> wire = introduce(reach.target, true);
    wait_while(Stage::Introduced, Clock::now() + milliseconds(500));
    if (wire->is_heard())  // a busy chief
      wait_while(Stage::Introduced, Clock::now() + time_to_introduce_oneself(options_));
  } catch (const AlreadyExists&) {
    throw;
  } catch (const Error& error) {
    say_info(str("the chief reports: ", error.text().what));
  }
}

void Coordinator::take_port() {
  Descriptor port;
  try {
    port = hold_port_of_entry(self_);
  } catch (const Unavailable&) {
    // Perhaps a second process with this task index: then the chief can name the first one, and report it.
    ask_who_holds_the_task();
    throw;
  }
  if (options_.self == options_.chief) server_ = Server::start(options_, key_, std::move(port));
  const std::lock_guard lock(mutex_);
  port_ = std::move(port);
}

// Which members are missing and why, as far as the chief knows; available only in its own process.
std::string Coordinator::missing() {
  std::vector<WorkerEntry> members;
  server_->with_chief([&](Chief& chief) { members = chief.members(Presence::Absent); });
  std::vector<Address> addresses;
  std::vector<std::string> lines;
  for (const WorkerEntry& member : members) addresses.push_back(member.address);
  const auto reaches = probe(addresses, milliseconds(500));
  std::vector<std::string> hosts;
  for (std::size_t i = 0; i < members.size(); ++i) {
    lines.push_back(str(to_string(members[i]), ": ",
                        reaches[i].answers() ? "its port answers but it has not joined" : reaches[i].why()));
    if (!reaches[i].target.empty()) hosts.push_back(parse_address(reaches[i].target).host);
  }
  server_->keep_places_for(hosts);
  return list_of(lines);
}

void Coordinator::give_up_waiting(const std::string& chief_missing) {
  std::string who = server_ ? missing() : missing_;
  if (who.empty()) who = chief_missing;
  const DeadlineExceeded failure(
      errors::kPeerMissing,
      {.what = "the job did not start: not all workers came",
       .where = str("missing: ", who),
       .seen = str("waited ", seconds_text(options_.join_timeout)),
       .help = str("start the missing workers and look at their logs; check addresses, names and firewalls",
                   options_.tls.any() ? ", that all use TLS, and that all certificates are of one authority" : "")});
  if (server_) server_->with_chief([&](Chief& chief) { chief.fail(failure); });
  throw failure;
}

// The chief may not run yet or be restarted meanwhile. Its own process starts it, joins in the same way, and also
// determines why others are missing.
void Coordinator::find_chief_and_wait_for_all() {
  take_port();
  const auto end = Clock::now() + options_.join_timeout;
  auto next_line = Clock::now() + options_.waiting_log_interval;
  const auto line_is_due = [&] {
    if (Clock::now() < next_line) return false;
    next_line = Clock::now() + options_.waiting_log_interval;
    return true;
  };
  for (;;) {
    const Reach reach = probe({chief_.address}, milliseconds(1000)).front();
    std::string why = reach.why();
    if (reach.answers()) {
      introduce(reach.target, false);
      Stage stage = wait_while(Stage::Introduced, std::min(end, Clock::now() + time_to_introduce_oneself(options_)));
      const auto last = server_ ? end : end + kChiefsWord;
      while (stage == Stage::Accepted && Clock::now() < last) {
        stage = wait_while(stage, std::min(last, next_line));
        if (stage == Stage::Accepted && line_is_due() && server_) {
          server_->with_chief([text = missing()](Chief& book) { book.announce(text); });
        }
      }
      if (stage == Stage::Joined) return;
      if (!options_.tls.any() && speaks_tls(reach.target, milliseconds(500))) {
        throw FailedPrecondition(
            errors::kJobKey,
            {.what = str("the chief (", to_string(chief_.address), ") uses TLS and ", self_.name(), " does not"),
             .help = "give all workers the three files of MultiWorkerOptions::tls, or set "
                     "LOCKSTEP_TLS_AUTHORITY, LOCKSTEP_TLS_CERTIFICATE and LOCKSTEP_TLS_KEY"});
      }
      const std::lock_guard lock(mutex_);
      why = str("it answers, but not as a chief of this job: ", why_ended_);
    }
    const std::string waiting_for = str(to_string(chief_), ", the chief: ", why);
    if (Clock::now() >= end) give_up_waiting(waiting_for);
    end_session();
    if (line_is_due()) say_info(str(self_.name(), ": waiting for ", waiting_for));
    std::this_thread::sleep_for(milliseconds(50));
  }
}

}  // namespace lockstep::coordination
