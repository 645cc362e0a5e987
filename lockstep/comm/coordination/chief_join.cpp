// The chief's side of joining: introductions, proofs, seats.

#include "coordination.pb.h"
#include "lockstep/base/logging.h"
#include "lockstep/base/text.h"
#include "lockstep/comm/coordination/chief.h"
#include "lockstep/comm/coordination/job_key.h"
#include "lockstep/comm/coordination/words.h"

namespace lockstep::coordination {
namespace {

constexpr std::size_t kMostUnknown = 64;  // connections that have not introduced themselves

}  // namespace

void Chief::opened(Connection connection, Time now) {
  std::size_t unknown = 0;
  for (const auto& [other, session] : sessions_) unknown += session.stage != Stage::Seated ? 1 : 0;
  sessions_[connection].opened = now;
  // Members of a large job all come at once: they must fit beside as many strangers.
  if (unknown >= kMostUnknown + seats_.size()) drop_stranger(connection, "too many unknown connections");
}

void Chief::drop_stranger(Connection connection, const std::string& why) {
  const auto found = sessions_.find(connection);
  if (found == sessions_.end()) return;
  const bool seated = found->second.stage == Stage::Seated;
  if (!seated) sessions_.erase(found);
  outbox_.close(connection);
  ++strangers_;
  // A scanner must not fill the log.
  if (const Time now = last_tick_; strangers_ == 1 || now - last_stranger_ > options_.waiting_log_interval) {
    log_warning(
        str("dropped ", counted(strangers_, "connection"), " that did not come from this job; the last: ", why));
    last_stranger_ = now;
  }
}

void Chief::refuse(Connection connection, const Failure& failure) {
  wire::FromChief message;
  write(failure, *message.mutable_failure());
  send(connection, std::move(message));
  sessions_.erase(connection);
  outbox_.close(connection);
}

void Chief::hello(Connection connection, Session& session, const wire::ToChief& message) {
  const wire::Hello& hello = message.hello();
  const Seat* seat = seat_of(hello.member());
  if (!message.has_hello() || hello.nonce().size() != kNonceBytes) return drop_stranger(connection, "no introduction");
  if (hello.protocol() != kProtocol) {
    return refuse(connection, {.code = Code::FailedPrecondition,
                               .number = errors::kDifferentPrograms,
                               .text = {.what = "this worker's Lockstep and the chief's speak different protocols",
                                        .seen = str("this worker: ", hello.protocol(), ", the chief: ", kProtocol),
                                        .help = "run the same version of Lockstep on all workers"},
                               .member = hello.member()});
  }
  if (seat == nullptr) {
    return refuse(connection,
                  {.code = Code::FailedPrecondition,
                   .number = errors::kDifferentClusters,
                   .text = {.what = str("the chief's cluster has no member with id ", hello.member()),
                            .seen = str("it has ", counted(static_cast<long long>(seats_.size()), "member")),
                            .help = "give all workers the same cluster"},
                   .member = hello.member()});
  }
  session.stage = Stage::Challenged;
  session.member = hello.member();
  session.their_nonce = hello.nonce();
  session.has_key = hello.has_key();
  session.our_nonce = random_bytes(kNonceBytes);
  wire::FromChief answer;
  answer.mutable_challenge()->set_nonce(session.our_nonce);
  answer.mutable_challenge()->set_mac(mac_of(key_, {"chief", session.their_nonce, session.our_nonce}));
  answer.mutable_challenge()->set_has_key(!key_.empty());
  send(connection, std::move(answer));
}

void Chief::proof(Connection connection, Session& session, const wire::ToChief& message, Time now) {
  const wire::Proof& proof = message.proof();
  if (!message.has_proof()) return drop_stranger(connection, "no proof of the job key");
  const std::string expected =
      mac_of(key_, {"member", session.their_nonce, session.our_nonce, std::to_string(session.member), proof.details()});
  if (!same_bytes(proof.mac(), expected)) {
    ++strangers_;
    log_warning(str("a process that claims to be ", title(seat_of(session.member)->member), " was refused: ",
                    session.has_key == key_.empty() ? "only one side has a job key" : "its job key is another one"));
    return refuse(connection, {.code = Code::FailedPrecondition,
                               .number = errors::kJobKey,
                               .text = {.what = "this worker's job key is not the chief's",
                                        .help = "give all workers the same LOCKSTEP_JOB_KEY_FILE"},
                               .member = session.member});
  }
  wire::Details details;
  if (!details.ParseFromString(proof.details())) return drop_stranger(connection, "unreadable details");
  seat(connection, session, details, now);
}

void Chief::refuse_second(Connection connection, const Seat& holder, const wire::Details& details, Time now) {
  const std::string held =
      str("held for ", seconds_text(now - holder.joined), " by pid ", holder.pid, " on host ", holder.host);
  const std::string second = str("a second process (pid ", details.pid(), " on host ", details.host(), ")");
  wire::FromChief notice;
  notice.mutable_notice()->set_warning(true);
  notice.mutable_notice()->set_line(
      str(second, " tried to join as ", holder.member.name, ", which is ", held, "; it was refused"));
  send(holder.connection, notice);
  if (holder.connection != seats_.front().connection && seats_.front().connection != 0) {
    send(seats_.front().connection, std::move(notice));
  }
  refuse(connection,
         {.code = Code::AlreadyExists,
          .number = errors::kTaskTaken,
          .text = {.what = str(title(holder.member), " is already in the job: two processes have its task index"),
                   .where = str("in pid ", details.pid(), " on host ", details.host()),
                   .seen = held,
                   .help = "give every process its own task index, or end the process that holds it"},
          .member = holder.member.id});
}

bool Chief::same_facts(Connection connection, const Member& member, const wire::Details& details) {
  const Member& chief = seats_.front().member;
  const auto found = difference(chief.name, options_.facts, member.name, facts_of(details));
  if (!found.tolerated.empty()) log_warning(str(member.name, " differs from ", chief.name, ": ", found.tolerated));
  if (found.cluster.empty() && found.program.empty()) return true;
  const bool cluster = !found.cluster.empty();
  const Failure failure{
      .code = Code::FailedPrecondition,
      .number = cluster ? errors::kDifferentClusters : errors::kDifferentPrograms,
      .text = {.what = str(title(member), " and ", title(chief),
                           cluster ? " have different clusters" : " run different programs"),
               .where = str("when ", member.name, " joined; pid ", details.pid(), " on host ", details.host()),
               .seen = cluster ? found.cluster : found.program,
               .help = cluster ? "give all workers the same cluster; only the task differs"
                               : "run the same program with the same settings on all workers"},
      .member = member.id};
  // The job cannot start with this one, and who is right is not for the chief to say: all are told.
  if (!started_) fail(failure);
  refuse(connection, failure);
  return false;
}

void Chief::seat(Connection connection, Session& session, const wire::Details& details, Time now) {
  Seat& seat = *seat_of(session.member);
  if (seat.presence == Presence::Here) return refuse_second(connection, seat, details, now);
  if (details.port_taken()) {
    return refuse(connection, {.code = Code::NotFound,
                               .number = errors::kPortInUse,
                               .text = {.what = str(title(seat.member), " has not joined"), .help = "free its port"},
                               .member = seat.member.id});
  }
  const std::string host = details.host().substr(0, 256);
  const bool old = details.incarnation() != options_.incarnation;
  if (!old && seat.presence == Presence::Left && seat.pid == details.pid() && seat.host == host) {
    // The same process: it wants the next job, which begins once the chief has left this one too. Until then it tries again.
    sessions_.erase(connection);
    return outbox_.close(connection);
  }
  if (old || seat.presence != Presence::Absent) {
    const std::string why =
        old ? str("it belongs to run ", details.incarnation(), " of the job; this is run ", options_.incarnation)
            : str("it has ", seat.presence == Presence::Left ? "left" : "been given up", " before");
    return refuse(connection, {.code = Code::FailedPrecondition,
                               .number = errors::kOldIncarnation,
                               .text = {.what = str(title(seat.member), " cannot come back into this job"),
                                        .where = str("in pid ", details.pid(), " on host ", details.host()),
                                        .seen = why,
                                        .help = "restart the whole job"},
                               .member = seat.member.id});
  }
  if (failure_) return refuse(connection, *failure_);
  if (!same_facts(connection, seat.member, details)) return;
  session.stage = Stage::Seated;
  session.token = random_bytes(kNonceBytes);
  seat.presence = Presence::Here;
  seat.connection = connection;
  seat.host = host;
  seat.pid = details.pid();
  seat.joined = seat.last_beat = now;
  wire::FromChief answer;
  answer.mutable_accepted()->set_token(session.token);
  send(connection, std::move(answer));
  if (missing().empty()) start();
}

void Chief::start() {
  started_ = true;
  wire::FromChief message;
  write_roster(*message.mutable_welcome(), last_tick_);
  tell_all(message);
}

}  // namespace lockstep::coordination
