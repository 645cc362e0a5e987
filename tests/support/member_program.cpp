// A member of a job, for tests with real processes. Joins according to its arguments, then executes lines from standard
// input and answers each with one line: "ok ..." or "error L104 ...". Log lines begin with "log ", the job's failure
// with "failure ".
//
//   member_program SELF ADDRESS,ADDRESS,... [name=value ...]     heartbeat, dead, join, log, slow, leave (ms); key (hex);
//                                                                incarnation, cluster, machine

#include <unistd.h>

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <iostream>
#include <mutex>
#include <sstream>
#include <thread>

#include "lockstep/base/logging.h"
#include "lockstep/base/text.h"
#include "lockstep/comm/coordination/coordinator.h"
#include "tests/support/hex.h"

namespace lockstep::coordination {
namespace {

using std::chrono::milliseconds;

void say(std::string line) {
  static std::mutex mutex;
  for (char& c : line) {
    if (c == '\n') c = ' ';
  }
  line += '\n';
  const std::lock_guard lock(mutex);
  // The reader may have gone; that does not concern this program.
  if (::write(STDOUT_FILENO, line.data(), line.size()) < 0) return;
}

std::string words_of(const Error& error) { return str("L", error.number(), " ", error.what()); }

std::vector<std::string> split(const std::string& text, char at) {
  std::vector<std::string> parts;
  std::istringstream in(text);
  for (std::string part; std::getline(in, part, at);) parts.push_back(part);
  return parts;
}

JoinOptions read_arguments(int count, char** arguments) {
  JoinOptions options;
  options.self = std::stoi(arguments[1]);
  for (const std::string& address : split(arguments[2], ',')) {
    const int id = static_cast<int>(options.members.size());
    options.members.push_back({.task_type = "worker", .task_index = id, .address = parse_address(address)});
  }
  for (int i = 3; i < count; ++i) {
    const std::string argument = arguments[i];
    const std::string name = argument.substr(0, argument.find('='));
    const std::string value = argument.substr(argument.find('=') + 1);
    const auto time = [&] { return milliseconds(std::stol(value)); };
    if (name == "heartbeat")
      options.heartbeat_interval = time();
    else if (name == "dead")
      options.dead_after = time();
    else if (name == "join")
      options.join_timeout = time();
    else if (name == "log")
      options.waiting_log_interval = time();
    else if (name == "slow")
      options.slow_warning = time();
    else if (name == "leave")
      options.leave_timeout = time();
    else if (name == "key")
      ::setenv("LOCKSTEP_JOB_KEY", to_hex(value).c_str(), 1);
    else if (name == "chief")
      options.chief = std::stoi(value);
    else if (name == "incarnation")
      options.incarnation = std::stoull(value);
    else if (name == "cluster")
      options.cluster = value;
    else if (name == "machine")
      options.machine = value;
  }
  return options;
}

std::string obey(Coordinator& job, std::istringstream& line) {
  std::string verb, name, rest;
  long number = 0;
  line >> verb;
  if (verb == "barrier") {
    line >> name >> number;
    job.barrier(name, Deadline::after(milliseconds(number)));
  } else if (verb == "set") {
    line >> name >> rest;
    job.set(name, rest);
  } else if (verb == "get") {
    line >> name >> number;
    return job.get(name, Deadline::after(milliseconds(number)));
  } else if (verb == "same") {
    line >> name >> rest;
    job.require_same(name, split(rest, '|'), Deadline::after(std::chrono::seconds(20)));
  } else if (verb == "place") {
    line >> number >> std::ws;
    std::getline(line, rest);
    job.set_place(str("call ", number, " of run, ", rest));
  } else if (verb == "fail") {
    std::getline(line >> std::ws, rest);
    job.report_failure(Unavailable(errors::kPeerFailed, {.what = rest}));
  } else if (verb == "cut") {
    line >> number;
    job.report_cut(static_cast<int>(number));
  } else if (verb == "states") {
    constexpr const char* kPresences[] = {"absent", "here", "left", "lost"};
    for (const MemberState& state : job.states())
      rest += str(state.member.name(), " ", kPresences[static_cast<int>(state.presence)], " ", state.place, "; ");
    return rest;
  } else if (verb == "leave") {
    line >> number;
    job.leave(Deadline::after(milliseconds(number)));
  }
  return {};
}

int run(int count, char** arguments) {
  set_log_sink([](Severity, std::string_view line) { say(str("log ", line)); });
  std::unique_ptr<Coordinator> job;
  try {
    job = Coordinator::join(read_arguments(count, arguments));
  } catch (const Error& error) {
    say(str("error ", words_of(error)));
    return 1;
  }
  job->on_failure([](const Error& failure) {
    const ErrorText& text = failure.text();
    say(str("failure ", std::chrono::steady_clock::now().time_since_epoch().count(), " L", failure.number(), ": ",
            text.what, " | ", text.where, " | ", text.seen));
  });
  say(str("joined ", job->generation()));
  for (std::string line; std::getline(std::cin, line) && line != "quit";) {
    if (line == "exit") ::_exit(7);
    try {
      std::istringstream words(line);
      say("ok " + obey(*job, words));
    } catch (const Error& error) {
      say(str("error ", words_of(error)));
    }
  }
  const auto begin = std::chrono::steady_clock::now();
  job.reset();
  say(str("ended ", std::chrono::duration_cast<milliseconds>(std::chrono::steady_clock::now() - begin).count()));
  return 0;
}

}  // namespace
}  // namespace lockstep::coordination

int main(int count, char** arguments) { return count < 3 ? 2 : lockstep::coordination::run(count, arguments); }
