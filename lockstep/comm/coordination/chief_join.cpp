// The chief's side of joining: introductions, proofs, seats.

#include <algorithm>

#include "lockstep/base/logging.h"
#include "lockstep/base/random_bytes.h"
#include "lockstep/base/text.h"
#include "lockstep/comm/cluster/cluster_spec.h"
#include "lockstep/comm/coordination/chief.h"
#include "lockstep/comm/coordination/credentials.h"
#include "lockstep/comm/disagreement.h"

namespace lockstep::coordination {
namespace {

constexpr std::size_t kMostUnknown = 64;  // connections that have not introduced themselves

std::string process_of(const wire::Seat& seat) { return str("pid ", seat.pid(), " on host ", seat.host()); }

// A cluster is one long line of JSON, of which the tasks that differ are worth more than the beginning.
std::string difference_of_clusters(const std::string& name_a, const std::string& a, const std::string& name_b,
                                   const std::string& b) {
  try {
    const std::string tasks = difference(parse_cluster(a), name_a, parse_cluster(b), name_b);
    if (!tasks.empty()) return tasks;
  } catch (const Error&) {
  }
  return difference({name_a, {a}}, {name_b, {b}});
}

}  // namespace

void Chief::opened(Connection connection, Time now) {
  const auto unknown =
      std::ranges::count_if(sessions_, [](const auto& entry) { return entry.second.stage != Stage::Seated; });
  sessions_[connection].opened = now;
  // Members of a large job all come at once: they must fit in addition to as many strangers.
  if (static_cast<std::size_t>(unknown) >= kMostUnknown + seats_.size())
    drop_stranger(connection, "too many unknown connections");
}

void Chief::drop_stranger(Connection connection, const std::string& why) {
  const auto found = sessions_.find(connection);
  if (found == sessions_.end()) return;
  found->second.stage == Stage::Seated ? outbox_.close(connection) : end(connection);
  // A scanner must not fill the log.
  if (++strangers_ > 1 && last_tick_ - last_stranger_ <= options_.waiting_log_interval) return;
  say_warning(str("dropped ", counted(strangers_, "connection"), " that did not come from this job; the last: ", why));
  last_stranger_ = last_tick_;
}

void Chief::end(Connection connection) {
  sessions_.erase(connection);
  outbox_.close(connection);
}

void Chief::hello(Connection connection, Session& session, const wire::ToChief& message) {
  const wire::Greeting& hello = message.hello();
  if (!message.has_hello() || hello.nonce().size() != kNonceBytes) return drop_stranger(connection, "no introduction");
  if (hello.protocol() != kProtocol) {
    throw FailedPrecondition(errors::kDifferentPrograms,
                             {.what = "this worker's Lockstep and the chief's speak different protocols",
                              .seen = str("this worker: ", hello.protocol(), ", the chief: ", kProtocol),
                              .help = "run the same version of Lockstep on all workers"});
  }
  if (seat_of(hello.member()) == nullptr) {
    if (is_over()) return end(connection);
    throw FailedPrecondition(errors::kDifferentClusters,
                             {.what = str("the chief's cluster has no member with id ", hello.member()),
                              .seen = str("it has ", counted(std::ssize(seats_), "member")),
                              .help = "give all workers the same cluster"});
  }
  session.stage = Stage::Challenged;
  session.hello = hello;
  session.nonce = random_bytes(kNonceBytes);
  wire::FromChief answer;
  answer.mutable_challenge()->set_nonce(session.nonce);
  answer.mutable_challenge()->set_mac(mac_of(key_, {"chief", hello.nonce(), session.nonce}));
  answer.mutable_challenge()->set_has_key(!key_.empty());
  send(connection, std::move(answer));
}

void Chief::proof(Connection connection, Session& session, const wire::ToChief& message, Time now) {
  const wire::Greeting& proof = message.proof();
  const int member = session.hello.member();
  if (!message.has_proof()) return drop_stranger(connection, "no proof of the job key");
  const std::string expected =
      mac_of(key_, {"member", session.hello.nonce(), session.nonce, std::to_string(member), proof.details()});
  if (!same_bytes(proof.mac(), expected)) {
    say_warning(str("a process that claims to be ", to_string(seat_of(member)->member),
                    " was refused: its job key does not match"));
    throw FailedPrecondition(errors::kJobKey, {.what = "this worker's job key is not the chief's",
                                               .help = "give all workers the same LOCKSTEP_JOB_KEY_FILE"});
  }
  wire::Details details;
  if (!details.ParseFromString(proof.details())) return drop_stranger(connection, "unreadable details");
  seat(connection, session, details, now);
}

void Chief::refuse_second(const Seat& holder, const wire::Seat& second, Time now) {
  const std::string held = str("held for ", seconds_text(now - holder.joined), " by ", process_of(holder.last));
  const auto notice = warning_of(str("a second process (", process_of(second), ") tried to join as ",
                                     holder.member.name(), ", which is ", held, "; it was refused"));
  for (const Connection told : std::set{holder.connection, chief().connection}) {
    if (told != 0) send(told, notice);
  }
  throw AlreadyExists(
      errors::kTaskTaken,
      {.what = str(to_string(holder.member), " is already in the job: two processes have its task index"),
       .where = str("in ", process_of(second)),
       .seen = held,
       .help = "give every process its own task index, or end the process that holds it"});
}

void Chief::require_same_cluster(const WorkerEntry& member, const wire::Details& details) {
  const WorkerEntry& chief = this->chief().member;
  if (details.machine() != options_.machine) {
    say_warning(str(member.name(), " runs on another kind of machine: ",
                    difference({chief.name(), {options_.machine}}, {member.name(), {details.machine()}})));
  }
  if (details.cluster() == options_.cluster) return;
  const FailedPrecondition failure(
      errors::kDifferentClusters,
      {.what = str(to_string(member), " and ", to_string(chief), " have different clusters"),
       .where = str("when ", member.name(), " joined; ", process_of(details.seat())),
       .seen = difference_of_clusters(chief.name(), options_.cluster, member.name(), details.cluster()),
       .help = "give all workers the same cluster; only the task differs"});
  // The job cannot start with this one, and the chief cannot know which one is right: all are told.
  if (!started_) fail(failure);
  throw failure;
}

void Chief::seat(Connection connection, Session& session, const wire::Details& details, Time now) {
  Seat& seat = *seat_of(session.hello.member());
  const std::string host = details.seat().host().substr(0, 256);
  const bool same_process = seat.last.pid() == details.seat().pid() && seat.last.host() == host;
  // The next generation may give every seat to another process. It begins once the chief is done with this one.
  const bool old = details.incarnation() != options_.incarnation;
  if (is_over() && !old && !details.port_taken()) return end(connection);
  // A process that has its port again has ended its session, even if that has yet to be seen here.
  const bool is_back = same_process && !details.port_taken();
  if (seat.presence == Presence::Here && !is_back) refuse_second(seat, details.seat(), now);
  if (details.port_taken()) {
    throw NotFound(errors::kPortInUse,
                   {.what = str(to_string(seat.member), " has not joined"), .help = "free its port"});
  }
  if (!old && seat.presence != Presence::Absent && same_process) {
    // It wants the next job, which begins once the chief is done with this one too. Until then it tries again.
    return end(connection);
  }
  if (old || seat.presence != Presence::Absent) {
    const std::string why =
        old ? str("it belongs to run ", details.incarnation(), " of the job; this is run ", options_.incarnation)
            : str("it has ", seat.presence == Presence::Left ? "left" : "been given up", " before");
    throw FailedPrecondition(errors::kOldIncarnation,
                             {.what = str(to_string(seat.member), " cannot come back into this job"),
                              .where = str("in ", process_of(details.seat())),
                              .seen = why,
                              .help = "restart the whole job"});
  }
  if (failure_) throw Error(*failure_);
  require_same_cluster(seat.member, details);
  session.stage = Stage::Seated;
  session.token = random_bytes(kNonceBytes);
  seat.presence = Presence::Here;
  seat.connection = connection;
  seat.last.set_host(host);
  seat.last.set_pid(details.seat().pid());
  seat.joined = seat.last_beat = now;
  seat.answers = {};
  wire::FromChief answer;
  answer.set_token(session.token);
  send(connection, std::move(answer));
  if (!members(Presence::Absent).empty()) return;
  started_ = true;
  tell_all(roster());
}

}  // namespace lockstep::coordination
