#include "lockstep/comm/coordination/coordinator.h"

#include <algorithm>
#include <exception>
#include <set>
#include <thread>

#include "coordination.pb.h"
#include "lockstep/base/logging.h"
#include "lockstep/base/text.h"
#include "lockstep/comm/coordination/client.h"
#include "lockstep/comm/coordination/job_key.h"
#include "lockstep/comm/coordination/port.h"
#include "lockstep/comm/coordination/server.h"
#include "lockstep/comm/coordination/words.h"

namespace lockstep::coordination {
namespace {

using Clock = std::chrono::steady_clock;
using std::chrono::milliseconds;

void check(const JoinOptions& options) {
  const auto wrong = [](std::string what, std::string help) {
    throw InvalidArgument(errors::kBadOption, {.what = std::move(what), .help = std::move(help)});
  };
  std::set<int> ids;
  std::set<std::string> addresses;
  for (const Member& member : options.members) {
    split_address(member.address);
    if (!ids.insert(member.id).second) wrong(str("two members have the id ", member.id), "number the members");
    if (!addresses.insert(member.address).second) {
      wrong(str("two members have the address ", member.address), "give every member its own port");
    }
  }
  if (!ids.contains(options.self)) {
    wrong(str("JoinOptions::self must be the id of a member, got ", options.self),
          "take the id from the list of members");
  }
  if (options.heartbeat_interval < milliseconds(1) || options.dead_after < 2 * options.heartbeat_interval) {
    wrong(str("dead_after must be at least two heartbeat intervals, got ", options.dead_after.count(), " ms and ",
              options.heartbeat_interval.count(), " ms"),
          "keep the defaults of 3 s and 0.5 s");
  }
}

const Member& self_of(const JoinOptions& options) {
  return *std::find_if(options.members.begin(), options.members.end(),
                       [&](const Member& member) { return member.id == options.self; });
}

std::string key_for(const JoinOptions& options) {
  std::string key = find_job_key(options.job_key);
  if (key.empty() && !is_loopback(options.members.front().address)) {
    throw FailedPrecondition(
        errors::kJobKey,
        {.what = str("a job on ", options.members.front().address, " needs a job key"),
         .seen = "only jobs on the loopback address work without one",
         .help = "set LOCKSTEP_JOB_KEY_FILE to a file of mode 0600 with the same 32 bytes on all hosts; "
                 "`lockstep run` makes one for you"});
  }
  return key;
}

// The session ends by itself, with the reason as an exception, unless nobody is there to ask.
void ask_who_has_the_seat(const JoinOptions& options, const std::string& key) {
  const Member& chief = options.members.front();
  const auto reach = probe({chief.address}, milliseconds(200)).front();
  if (!reach.answers) return;
  Client client(options, key);
  try {
    client.introduce(connect(reach.target, chief.address, options.tls), true);
    client.wait_while(Client::Stage::Introduced, Clock::now() + milliseconds(500));
  } catch (const AlreadyExists&) {
    throw;
  } catch (const Error& error) {
    log_info(str("the chief says: ", error.text().what));
  }
}

HeldPort hold_port(const Member& self, const JoinOptions& options, const std::string& key) {
  try {
    return HeldPort::hold(self);
  } catch (const Unavailable&) {
    // Perhaps a second process with this task index: then the chief can say who the first one is, and tell it.
    ask_who_has_the_seat(options, key);
    throw;
  }
}

std::string reasons(const std::vector<Member>& missing) {
  std::vector<std::string> addresses;
  for (const Member& member : missing) addresses.push_back(member.address);
  const auto reaches = probe(addresses, milliseconds(500));
  std::vector<std::string> lines;
  for (std::size_t i = 0; i < missing.size(); ++i) {
    lines.push_back(
        str(title(missing[i]), ": ", reaches[i].answers ? "its port answers but it has not joined" : reaches[i].why));
  }
  return name_list(lines);
}

Failure nobody_came(const std::string& missing, milliseconds waited) {
  return {.code = Code::DeadlineExceeded,
          .number = errors::kPeerMissing,
          .text = {.what = "the job did not start: not all workers came",
                   .where = str("missing: ", missing),
                   .seen = str("waited ", seconds_text(waited)),
                   .help = "start the missing workers and look at their logs; check addresses, names and firewalls"}};
}

// Joins the chief, which may not run yet or be restarted meanwhile; its own process (with `server`) comes in the same way, and
// also finds out why others are missing.
void join_chief(Client& client, const JoinOptions& options, const Member& self, Server* server) {
  const Member& chief = options.members.front();
  const auto end = Clock::now() + options.join_timeout;
  auto next_line = Clock::now() + options.waiting_log_interval;
  const auto line_is_due = [&] {
    if (Clock::now() < next_line) return false;
    next_line = Clock::now() + options.waiting_log_interval;
    return true;
  };
  for (;;) {
    const auto reach = probe({chief.address}, milliseconds(1000)).front();
    std::string why = reach.why;
    if (reach.answers) {
      client.introduce(connect(reach.target, chief.address, options.tls), false);
      auto stage = client.wait_while(Client::Stage::Introduced, std::min(end, Clock::now() + std::chrono::seconds(5)));
      while (stage == Client::Stage::Accepted && Clock::now() < end) {
        stage = client.wait_while(stage, std::min(end, next_line));
        if (stage == Client::Stage::Accepted && line_is_due() && server) server->announce(reasons(server->missing()));
      }
      if (stage == Client::Stage::Joined) return;
      why = str("it answers, but not as a chief of this job: ", client.why_ended());
    }
    if (Clock::now() >= end) {
      const std::string missing = server ? reasons(server->missing()) : client.missing();
      const Failure failure =
          nobody_came(missing.empty() ? str(title(chief), ", the chief: ", why) : missing, options.join_timeout);
      if (server) server->fail(failure);
      failure.raise();
    }
    client.give_up_session();
    if (line_is_due()) log_info(str(self.name, ": waiting for ", title(chief), ", the chief: ", why));
    std::this_thread::sleep_for(milliseconds(50));
  }
}

}  // namespace

struct Coordinator::Parts {
  JoinOptions options;
  std::unique_ptr<Server> server;  // in the chief's process
  std::unique_ptr<Client> client;  // goes before the server
  int exceptions = std::uncaught_exceptions();
};

std::unique_ptr<Coordinator> Coordinator::join(const JoinOptions& options) {
  check(options);
  const std::string key = key_for(options);
  const Member& chief = options.members.front();
  const Member& self = self_of(options);
  auto parts = std::make_unique<Parts>();
  parts->options = options;
  HeldPort port = hold_port(self, options, key);
  if (self.id == chief.id) {
    port.release();
    parts->server = std::make_unique<Server>(options, key);
  }
  parts->client = std::make_unique<Client>(options, key);
  if (!parts->server) parts->client->keep(std::move(port));
  join_chief(*parts->client, options, self, parts->server.get());
  return std::unique_ptr<Coordinator>(new Coordinator(std::move(parts)));
}

Coordinator::Coordinator(std::unique_ptr<Parts> parts) : parts_(std::move(parts)) {}

Coordinator::~Coordinator() {
  try {
    if (std::uncaught_exceptions() > parts_->exceptions) {
      report_failure(
          {.code = Code::Unavailable,
           .number = errors::kPeerFailed,
           .text = {.what = str("the program of ", title(self_of(parts_->options)), " ended with an exception")},
           .member = parts_->options.self});
      wait_for_failure(Deadline::after(milliseconds(300)));
    }
    leave(Deadline::after(parts_->options.leave_timeout));
  } catch (const std::exception& error) {
    log_warning(error.what());
  }
}

int Coordinator::self() const { return parts_->options.self; }
bool Coordinator::is_chief() const { return parts_->server != nullptr; }
const std::vector<Member>& Coordinator::members() const { return parts_->options.members; }
std::uint64_t Coordinator::generation() const { return parts_->client->generation(); }

void Coordinator::set(std::string_view key, std::string_view value) {
  if (key.size() > kMaxKey || value.size() > kMaxValue) {
    throw InvalidArgument(errors::kBadOption,
                          {.what = str("a stored value must have at most ", kMaxValue, " bytes and its key ", kMaxKey,
                                       ", got ", value.size(), " and ", key.size()),
                           .help = "store small values; tensors go through collectives"});
  }
  wire::ToChief message;
  message.mutable_set()->set_key(std::string(key));
  message.mutable_set()->set_value(std::string(value));
  parts_->client->ask(std::move(message));
}

std::string Coordinator::get(std::string_view key, Deadline deadline) {
  wire::ToChief message;
  message.mutable_get()->set_key(std::string(key.substr(0, kMaxKey + 1)));
  message.mutable_get()->set_wait_ms(
      deadline.is_never() ? -1 : std::chrono::ceil<milliseconds>(deadline.remaining()).count());
  return parts_->client->ask(std::move(message));
}

void Coordinator::barrier(std::string_view name, Deadline deadline) {
  parts_->client->meet(std::string(name.substr(0, kMaxKey)), nullptr, deadline);
}

void Coordinator::require_same(std::string_view name, const std::vector<std::string>& lines, Deadline deadline) {
  std::size_t bytes = 0;
  for (const std::string& line : lines) bytes += line.size() + 8;
  if (bytes > kMaxValue) {
    throw InvalidArgument(errors::kBadOption,
                          {.what = str("lines to compare must have at most ", kMaxValue, " bytes, got ", bytes),
                           .help = "compare a digest of them"});
  }
  parts_->client->meet(std::string(name.substr(0, kMaxKey)), &lines, deadline);
}

void Coordinator::set_place(std::int64_t step, std::string_view place) { parts_->client->set_place(step, place); }
std::vector<MemberState> Coordinator::states() { return parts_->client->states(); }
void Coordinator::report_failure(Failure failure) { parts_->client->report(std::move(failure)); }
std::optional<Failure> Coordinator::failure() const { return parts_->client->failure(); }

std::optional<Failure> Coordinator::wait_for_failure(Deadline deadline) const {
  return parts_->client->wait_for_failure(deadline);
}

void Coordinator::flush() {
  if (parts_->server) parts_->server->flush();
}

void Coordinator::on_failure(std::function<void(const Failure&)> callback) {
  parts_->client->on_failure(std::move(callback));
}

void Coordinator::leave(Deadline deadline) {
  const bool left = parts_->client->leave(deadline);
  if (left && parts_->server) {
    auto next_line = Clock::now() + parts_->options.waiting_log_interval;
    std::vector<std::string> others;
    while (!(others = parts_->server->others_here()).empty() && !deadline.expired() && !failure()) {
      if (Clock::now() >= next_line) {
        log_info(str(parts_->options.members.front().name, ": waiting for ", name_list(others), " to leave"));
        next_line += parts_->options.waiting_log_interval;
      }
      std::this_thread::sleep_for(milliseconds(2));
    }
    const Member& chief = parts_->options.members.front();
    parts_->server->fail({.code = Code::Unavailable,
                          .number = errors::kChiefGone,
                          .text = {.what = str(title(chief), ", the chief, has left the job"),
                                   .seen = others.empty() ? "" : str("still here: ", name_list(others)),
                                   .help = "let the chief leave last, or give it more time in leave"},
                          .member = chief.id});
  }
  if (left || failure()) {
    parts_->client->give_up_session();
    if (parts_->server) parts_->server->shut_down();
  }
}

}  // namespace lockstep::coordination
