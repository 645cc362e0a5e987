// The chief's side of joining: introductions, proofs, admission.

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

std::string process_of(const wire::MemberInfo& info) { return str("pid ", info.pid(), " on host ", info.host()); }

// A cluster is one long line of JSON, and the tasks that differ matter more than its beginning.
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
  // Members of a large job all come at once: leave room for as many strangers in addition.
  if (static_cast<std::size_t>(unknown) >= kMostUnknown + members_.size())
    drop_unknown(connection, "too many unknown connections");
}

void Chief::drop_unknown(Connection connection, const std::string& why) {
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
  if (!message.has_hello() || hello.nonce().size() != kNonceBytes) return drop_unknown(connection, "no introduction");
  if (hello.protocol() != kProtocol) {
    throw FailedPrecondition(errors::kDifferentPrograms,
                             {.what = "this worker's Lockstep and the chief's use different protocols",
                              .seen = str("this worker: ", hello.protocol(), ", the chief: ", kProtocol),
                              .help = "run the same version of Lockstep on all workers"});
  }
  if (member_of(hello.member()) == nullptr) {
    if (is_over()) return end(connection);
    throw FailedPrecondition(errors::kDifferentClusters,
                             {.what = str("the chief's cluster has no member with id ", hello.member()),
                              .seen = str("it has ", counted(std::ssize(members_), "member")),
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
  if (!message.has_proof()) return drop_unknown(connection, "no proof of the job key");
  const std::string expected =
      mac_of(key_, {"member", session.hello.nonce(), session.nonce, std::to_string(member), proof.details()});
  if (!same_bytes(proof.mac(), expected)) {
    say_warning(str("a process that claims to be ", to_string(member_of(member)->entry),
                    " was refused: its job key does not match"));
    throw FailedPrecondition(errors::kJobKey, {.what = "this worker's job key is not the chief's",
                                               .help = "give all workers the same LOCKSTEP_JOB_KEY_FILE"});
  }
  wire::Details details;
  if (!details.ParseFromString(proof.details())) return drop_unknown(connection, "unreadable details");
  admit(connection, session, details, now);
}

void Chief::refuse_second(const Member& holder, const wire::MemberInfo& second, Time now) {
  const std::string held = str("held for ", seconds_text(now - holder.joined), " by ", process_of(holder.last));
  const auto notice = warning_of(str("a second process (", process_of(second), ") tried to join as ",
                                     holder.entry.name(), ", which is ", held, "; it was refused"));
  for (const Connection told : std::set{holder.connection, chief().connection}) {
    if (told != 0) send(told, notice);
  }
  throw AlreadyExists(
      errors::kTaskTaken,
      {.what = str(to_string(holder.entry), " is already in the job: two processes have its task index"),
       .where = str("in ", process_of(second)),
       .seen = held,
       .help = "give every process its own task index, or end the process that holds it"});
}

void Chief::require_same_cluster(const WorkerEntry& member, const wire::Details& details) {
  const WorkerEntry& chief = this->chief().entry;
  if (details.machine() != options_.machine) {
    say_warning(str(member.name(), " runs on another kind of machine: ",
                    difference({chief.name(), {options_.machine}}, {member.name(), {details.machine()}})));
  }
  if (details.cluster() == options_.cluster) return;
  const FailedPrecondition failure(
      errors::kDifferentClusters,
      {.what = str(to_string(member), " and ", to_string(chief), " have different clusters"),
       .where = str("when ", member.name(), " joined; ", process_of(details.info())),
       .seen = difference_of_clusters(chief.name(), options_.cluster, member.name(), details.cluster()),
       .help = "give all workers the same cluster; only the task differs"});
  // The job cannot start with this one, and the chief cannot know which one is right: all members get the error.
  if (!started_) fail(failure);
  throw failure;
}

void Chief::admit(Connection connection, Session& session, const wire::Details& details, Time now) {
  Member& member = *member_of(session.hello.member());
  const std::string host = details.info().host().substr(0, 256);
  const bool same_process = member.last.pid() == details.info().pid() && member.last.host() == host;
  // The next generation may give every member to another process. It begins once the chief is done with this one.
  const bool old = details.incarnation() != options_.incarnation;
  if (is_over() && !old && !details.port_taken()) return end(connection);
  // A process that holds its port again has ended its session, even if that is not visible here yet.
  const bool is_back = same_process && !details.port_taken();
  if (member.presence == Presence::Here && !is_back) refuse_second(member, details.info(), now);
  if (details.port_taken()) {
    throw NotFound(errors::kPortInUse,
                   {.what = str(to_string(member.entry), " has not joined"), .help = "free its port"});
  }
  if (!old && member.presence != Presence::Absent && same_process) {
    // It wants the next job, which begins once the chief is done with this one. Until then it retries.
    return end(connection);
  }
  if (old || member.presence != Presence::Absent) {
    const std::string why =
        old ? str("it belongs to run ", details.incarnation(), " of the job; this is run ", options_.incarnation)
            : str("it has ", member.presence == Presence::Left ? "left" : "been given up", " before");
    throw FailedPrecondition(errors::kOldIncarnation,
                             {.what = str(to_string(member.entry), " cannot come back into this job"),
                              .where = str("in ", process_of(details.info())),
                              .seen = why,
                              .help = "restart the whole job"});
  }
  if (failure_) throw Error(*failure_);
  require_same_cluster(member.entry, details);
  session.stage = Stage::Seated;
  session.token = random_bytes(kNonceBytes);
  member.presence = Presence::Here;
  member.connection = connection;
  member.last.set_host(host);
  member.last.set_pid(details.info().pid());
  member.joined = member.last_beat = now;
  member.answers = {};
  wire::FromChief answer;
  answer.set_token(session.token);
  send(connection, std::move(answer));
  if (!members(Presence::Absent).empty()) return;
  started_ = true;
  tell_all(roster());
}

}  // namespace lockstep::coordination
