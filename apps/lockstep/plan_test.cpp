// The decisions of the launcher, as tables: hosts to commands, how a failed attempt is judged, how output is cut into lines.

#include <errno.h>
#include <gtest/gtest.h>
#include <signal.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <set>

#include "apps/lockstep/findings.h"
#include "apps/lockstep/outcome.h"
#include "apps/lockstep/output.h"
#include "apps/lockstep/plan.h"
#include "apps/lockstep/process.h"

namespace lockstep::app {
namespace {

using Strings = std::vector<std::string>;

template <class Call>
std::string usage_error_of(Call call) {
  try {
    call();
  } catch (const UsageError& error) {
    return error.what();
  }
  return "no error";
}

TEST(Hosts, AreReadFromAList) {
  EXPECT_EQ(parse_hosts("a:2,b"), (std::vector<Host>{{"a", 2}, {"b", 1}}));
  EXPECT_EQ(parse_hosts("[fd00::1]:4,10.0.0.1:1"), (std::vector<Host>{{"[fd00::1]", 4}, {"10.0.0.1", 1}}));
  EXPECT_EQ(to_string(parse_hosts("a:2,b")), "a:2,b:1");
}

TEST(Hosts, AreReadFromAFile) {
  EXPECT_EQ(parse_hostfile("# two machines\na slots=2\n\n  b:3  # fast\nc\n"),
            (std::vector<Host>{{"a", 2}, {"b", 3}, {"c", 1}}));
}

TEST(Hosts, AreReadFromSlurm) {
  EXPECT_EQ(slurm_hosts("n[1-3]", "2(x2),1"), (std::vector<Host>{{"n1", 2}, {"n2", 2}, {"n3", 1}}));
  EXPECT_EQ(slurm_hosts("n[1-2]", ""), (std::vector<Host>{{"n1", 1}, {"n2", 1}}));
}

TEST(Hosts, MistakesAreNamed) {
  const std::vector<std::pair<std::string, std::string>> table{
      {"", "the list of hosts is empty"},
      {"a:0", "slots >= 1, got '0'"},
      {"a:x", "got 'x'"},
      {"a:", "got ''"},
      {":2", "names no host"},
      {"a:2,,b", "names no host"},
      {"a,b,a", "'a' is listed twice"},
      {"fd00::1", "write an IPv6"},
      {"-oProxyCommand=x:1", "is not a host name"},
      {"a:99999999999", "slots >= 1"},
      {"me@a:1", "~/.ssh/config"},
  };
  for (const auto& [list, message] : table)
    EXPECT_NE(usage_error_of([&] { parse_hosts(list); }).find(message), std::string::npos) << list;
  EXPECT_NE(usage_error_of([] { parse_hostfile("a slots=2 max=3\n"); }).find("'host slots=2'"), std::string::npos);
  EXPECT_NE(usage_error_of([] { slurm_hosts("a", "2(x2)"); }).find("describes 2 nodes"), std::string::npos);
  EXPECT_NE(usage_error_of([] { slurm_hosts("", ""); }).find("SLURM_JOB_NODELIST is not"), std::string::npos);
  EXPECT_NE(usage_error_of([] { worker_addresses({{"a", 3}}, 65534); }).find("another --port"), std::string::npos);
}

TEST(Hosts, WorkersAreNumberedHostByHost) {
  const std::vector<Host> hosts{{"a", 2}, {"b", 1}, {"c", 2}};
  EXPECT_EQ(worker_addresses(hosts, 2222), (Strings{"a:2222", "a:2223", "b:2222", "c:2222", "c:2223"}));
  EXPECT_EQ(first_worker(hosts, 0), 0);
  EXPECT_EQ(first_worker(hosts, 2), 3);
}

TEST(Hosts, CommandsCarryArgumentsThroughTheShell) {
  HostsJob job{.hosts = {{"a", 2}, {"[fd00::1]", 1}}, .options = {"--grace", "3"}, .program = {"./train", "it's", ""}};
  EXPECT_EQ(shell_line(host_command(job, "1")),
            "lockstep run -H 'a:2,[fd00::1]:1' --host-index 1 --port 2222 --grace 3 ./train 'it'\\''s' ''");
  const auto ssh = ssh_command(job, 1, "/home/me/my job");
  EXPECT_EQ(ssh[ssh.size() - 2], "fd00::1");
  EXPECT_TRUE(ssh.back().starts_with("cd '/home/me/my job' && exec lockstep run -H")) << ssh.back();
  EXPECT_NE(ssh.back().find("--key-on-stdin"), std::string::npos);
  job.settings = {"LOCKSTEP_LOG=debug", "LOCKSTEP_TLS_KEY=/my keys/host.key"};
  const auto with_settings = ssh_command(job, 1, "/").back();
  EXPECT_TRUE(with_settings.starts_with(
      "cd / && exec env LOCKSTEP_LOG=debug 'LOCKSTEP_TLS_KEY=/my keys/host.key' lockstep run -H"))
      << with_settings;
  EXPECT_EQ(shell_line(srun_command(job)).find("srun --nodes=2 --ntasks-per-node=1 --kill-on-bad-exit=1 lockstep run"),
            0u);
}

TEST(Job, TellsEveryWorkerItsPlace) {
  const auto config = nlohmann::json::parse(tf_config_of({{"worker", {"a:1", "b:2"}}}, "worker", 1));
  EXPECT_EQ(config, nlohmann::json::parse(
                        R"({"cluster": {"worker": ["a:1", "b:2"]}, "task": {"type": "worker", "index": 1}})"));
  const auto variables =
      task_environment({.key = "k", .run_id = "r", .generation = 3}, {{"worker", {"a:1"}}}, "worker", 0);
  for (const auto* expected : {"LOCKSTEP_JOB_KEY=k", "LOCKSTEP_RUN_ID=r", "LOCKSTEP_GENERATION=3"})
    EXPECT_EQ(std::ranges::count(variables, expected), 1) << expected;
}

TEST(Job, KeysAndPortsAreAllDifferent) {
  EXPECT_EQ(random_hex(32).size(), 64u);
  EXPECT_NE(random_hex(32), random_hex(32));
  const auto ports = free_ports(50);
  EXPECT_EQ(std::set<int>(ports.begin(), ports.end()).size(), 50u);
}

Ending ended(int member, int code, int signal, Strings tail) {
  return {.member = member,
          .name = "worker " + std::to_string(member),
          .exit_code = code,
          .signal = signal,
          .tail = std::move(tail)};
}
Ending exited(int member, int code, Strings tail = {}) { return ended(member, code, 0, std::move(tail)); }
Ending killed(int member, int signal) { return ended(member, 0, signal, {}); }
Ending aborted(int member, Strings tail) { return ended(member, 0, SIGABRT, std::move(tail)); }
Ending by_us(Ending ending) {
  ending.by_us = true;
  return ending;
}

struct Judgement {
  const char* what;
  Attempt attempt;
  int cause;  // member, -1: none
  int code;
};

TEST(RootCause, IsTheWorkerThatFailedByItself) {
  const std::vector<Judgement> table{
      {"all well", {{exited(0, 0), exited(1, 0)}}, -1, 0},
      {"the first to fail", {{exited(1, 0), exited(0, 4), exited(2, 1)}}, 0, 4},
      {"one that lost a peer is a consequence", {{exited(0, 3), exited(1, 3), killed(2, SIGKILL)}}, 2, 3},
      {"so is one that reports another's failure",
       {{exited(0, 1, {"error[L113]: worker 1 failed"}), exited(1, 1, {"error[L504]: not finite"})}},
       1,
       1},
      {"even if it did not catch that error",
       {{aborted(0, {"terminate called", "  what():  error[L104]: worker 1 ended"}), aborted(1, {"terminate called"})}},
       1,
       1},
      {"so is one that learned of it from another",
       {{exited(0, 1, {"error[L106]: port", "  where: reported by worker 1 (b:2), last at step 0"}),
         exited(1, 1, {"error[L106]: port", "  where: reported by worker 1 (b:2), last at step 0"})}},
       1,
       1},
      {"only consequences: the first", {{exited(2, 3), exited(0, 3)}}, 2, 3},
      {"a crash is the program's error", {{killed(1, SIGSEGV), exited(0, 3)}}, 1, 1},
      {"an abort too", {{killed(0, SIGABRT)}}, 0, 1},
      {"a worker stopped by the launcher is not the cause",
       {{exited(1, 5), by_us(killed(0, SIGTERM)), by_us(exited(2, 9))}},
       1,
       5},
      {"an evaluator that did not end", {{exited(0, 0), exited(1, 0), by_us(killed(2, SIGTERM))}}, -1, 0},
      {"stopped by SIGTERM", {{by_us(killed(0, SIGTERM)), by_us(exited(1, 143))}, SIGTERM}, -1, 143},
      {"stopped, and all had finished", {{by_us(exited(0, 0)), by_us(exited(1, 0))}, SIGTERM}, -1, 0},
      {"stopped by Ctrl-C", {{by_us(killed(0, SIGINT)), by_us(exited(1, 130))}, SIGINT}, -1, 130},
      {"stopped, but killed in the end", {{by_us(killed(0, SIGKILL)), by_us(exited(1, 143))}, SIGHUP}, -1, 143},
      {"stopped, but one could not save", {{by_us(exited(0, 143)), by_us(exited(1, 5))}, SIGTERM}, 1, 5},
      {"stopped, and a peer missed it", {{by_us(exited(0, 143)), by_us(exited(1, 3))}, SIGTERM}, -1, 143},
      {"had failed before it was stopped", {{exited(0, 4), by_us(killed(1, SIGINT))}, SIGINT}, 0, 4},
  };
  for (const auto& row : table) {
    const auto* cause = root_cause(row.attempt);
    EXPECT_EQ(cause ? cause->member : -1, row.cause) << row.what;
    EXPECT_EQ(exit_code(row.attempt), row.code) << row.what;
  }
}

TEST(RootCause, IsDescribedInOneBlock) {
  auto ending = exited(1, 1, {"step 7", "error[L504]: loss is NaN", "  help: look at it"});
  ending.pid = 42;
  ending.after = Seconds(12.34);
  EXPECT_EQ(describe(ending),
            "lockstep: worker 1 (pid 42) exited with code 1, 12.3 s after its start\n"
            "  | error[L504]: loss is NaN\n"
            "  |   help: look at it\n"
            "  help: lockstep explain L504\n");
  auto memory = killed(0, SIGKILL);
  memory.out_of_memory = true;
  EXPECT_EQ(how_it_ended(memory), "was killed by SIGKILL because memory ran out");
  EXPECT_EQ(how_it_ended(killed(0, SIGSEGV)), "crashed with SIGSEGV");
  EXPECT_EQ(how_it_ended(killed(0, SIGTERM)), "was killed by SIGTERM");
}

TEST(RootCause, IsNotTheSurvivor) {
  const Attempt frozen{{exited(0, 3, {"error[L104]: worker 1 (a:2) stopped answering", "  seen:  worker 0 is fine"}),
                        by_us(killed(1, SIGKILL))}};
  EXPECT_EQ(describe(*root_cause(frozen), culprit(frozen, *root_cause(frozen))),
            "lockstep: worker 1 (pid 0) did not answer and was stopped, 0.0 s after its start\n"
            "  | [worker 0] error[L104]: worker 1 (a:2) stopped answering\n"
            "  | [worker 0]   seen:  worker 0 is fine\n"
            "  help: lockstep explain L104\n");
  const Attempt early{{exited(1, 0), exited(0, 3, {"error[L104]: worker 1 (a:2) ended without leaving"})}};
  EXPECT_EQ(describe(*root_cause(early), culprit(early, *root_cause(early))),
            "lockstep: worker 1 (pid 0) exited with code 0 before the job was done, 0.0 s after its start\n"
            "  | [worker 0] error[L104]: worker 1 (a:2) ended without leaving\n"
            "  help: lockstep explain L104\n");
  const Attempt elsewhere{{exited(0, 3, {"error[L104]: worker 7 (c:2) ended without leaving"})}};
  EXPECT_EQ(culprit(elsewhere, *root_cause(elsewhere)), nullptr);
  EXPECT_EQ(exit_code(frozen), 3);
  EXPECT_EQ(exit_code(early), 3);
}

TEST(RootCause, IsAWorkerThatLeftTooEarly) {
  const Attempt left{
      {exited(1, 0), exited(0, 1, {"error[L104]: worker 1 has left the job", "  where: run (a.cpp:7)"})}};
  EXPECT_EQ(describe(*root_cause(left), culprit(left, *root_cause(left))),
            "lockstep: worker 1 (pid 0) exited with code 0 before the job was done, 0.0 s after its start\n"
            "  | [worker 0] error[L104]: worker 1 has left the job\n"
            "  | [worker 0]   where: run (a.cpp:7)\n"
            "  help: lockstep explain L104\n");
}

TEST(RootCause, IsAWorkerThatWasStuckOrFrozen) {
  for (const auto* error :
       {"error[L101]: worker 1 did not reach a collective in time", "error[L104]: worker 1 (a:2) stopped answering"}) {
    const Attempt stuck{{exited(2, 1, {error, "  where: reported by worker 0 (a:1), call 3 of run"}),
                         exited(0, 1, {error, "  where: reported by worker 0 (a:1), call 3 of run"}),
                         by_us(killed(1, SIGKILL))}};
    const auto text = describe(*root_cause(stuck), culprit(stuck, *root_cause(stuck)));
    EXPECT_EQ(text.find("lockstep: worker 1 (pid 0) did not answer and was stopped"), 0u) << text;
    EXPECT_EQ(exit_code(stuck), 3);
  }
  const Attempt own{{exited(1, 1, {"error[L101]: replica 3 did not reach a meeting in time"})}};
  EXPECT_EQ(describe(*root_cause(own)).find("lockstep: worker 1 (pid 0) exited with code 1"), 0u);
  EXPECT_EQ(exit_code(own), 1);
}

TEST(RootCause, IsAWorkerThatEndedBeforeItJoined) {
  EXPECT_EQ(awaited_workers("lockstep: worker 0: waiting for worker 1 (a:2): connection refused, worker 12 (b:2): no "
                            "such host; here: worker 0 and worker 3"),
            (std::vector{1, 12}));
  EXPECT_EQ(awaited_workers("lockstep: worker 0: waiting for worker 1 and worker 2 to leave"), std::vector<int>());
  EXPECT_EQ(awaited_workers("worker 1 (a:2) is fine"), std::vector<int>());
  Attempt absent{{exited(1, 0), by_us(killed(0, SIGTERM))}};
  absent.endings[0].never_joined = true;
  EXPECT_EQ(
      describe(*root_cause(absent)),
      "lockstep: worker 1 (pid 0) exited with code 0 before it joined the others, 0.0 s after its start\n"
      "  help: let every worker make the strategy: what ends the program before that must come to the same answer "
      "on all\n");
  EXPECT_EQ(exit_code(absent), 1);
}

TEST(Restart, DependsOnTheCause) {
  const RestartPolicy twice{.restarts = 2};
  const Attempt failed{{exited(0, 1)}}, port{{exited(0, 1, {"error[L106]: port 20001 is in use"})}};
  EXPECT_EQ(next_step({{exited(0, 0)}}, twice, 0, 0), Next::Finish);
  EXPECT_EQ(next_step(failed, twice, 0, 0), Next::Restart);
  EXPECT_EQ(next_step(failed, twice, 2, 0), Next::Finish);
  EXPECT_EQ(next_step(failed, {}, 0, 0), Next::Finish);
  EXPECT_EQ(next_step({{killed(0, SIGKILL)}}, twice, 1, 0), Next::Restart);
  EXPECT_EQ(next_step({{exited(0, 2)}}, twice, 0, 0), Next::Finish) << "a usage error would repeat";
  EXPECT_EQ(next_step({{exited(0, 1)}, SIGINT}, twice, 0, 0), Next::Finish) << "the user has stopped it";
  EXPECT_EQ(next_step(port, {}, 0, 0), Next::NewPorts);
  EXPECT_EQ(next_step(port, {}, 0, 3), Next::Finish);
  EXPECT_EQ(next_step(port, {.restarts = 1, .port_retries = 0}, 0, 0), Next::Restart);
  const Attempt own{{exited(0, 1, {"error[L106]: the data port 127.0.0.1:5555 is in use", "  help:  end it"})}};
  EXPECT_EQ(next_step(own, {}, 0, 0), Next::Finish) << "the program has chosen it";
}

TEST(Restart, WaitsLongerEachTime) {
  const double expected[] = {1, 2, 4, 8, 16, 32, 60, 60};
  for (int i = 0; i < 8; ++i) EXPECT_EQ(restart_delay(i).count(), expected[i]);
}

TEST(Lines, AreWholeHoweverTheyArrive) {
  LineSplitter splitter;
  EXPECT_EQ(splitter.feed("one\ntw"), Strings{"one"});
  EXPECT_EQ(splitter.feed("o"), Strings{});
  EXPECT_EQ(splitter.feed("\n\nthree"), (Strings{"two", ""}));
  EXPECT_EQ(splitter.finish(), Strings{"three"});
  EXPECT_EQ(splitter.finish(), Strings{});
  EXPECT_EQ(splitter.tail(), (Strings{"one", "two", "", "three"}));
}

TEST(Lines, ThatNeverEndAreCut) {
  LineSplitter splitter;
  const auto lines = splitter.feed(std::string(LineSplitter::kLongest * 2 + 5, 'x'));
  ASSERT_EQ(lines.size(), 2u);
  EXPECT_EQ(lines[0].size(), LineSplitter::kLongest);
  EXPECT_EQ(splitter.finish(), Strings{"xxxxx"});
}

TEST(OutOfMemory, IsReadFromCounters) {
  EXPECT_EQ(counter("low 0\nhigh 0\noom 2\noom_kill 3\n", "oom_kill"), 3);
  EXPECT_EQ(counter("low 0\n", "oom_kill"), -1);
  EXPECT_EQ(counter("", "oom_kill"), -1);
}

TEST(Findings, JudgePeersAndLimits) {
  EXPECT_EQ(judge_peer("a:80", {.target = "10.0.0.1:80"}).verdict, Verdict::Ok);
  EXPECT_EQ(judge_peer("a:80", {.target = "10.0.0.1:80", .error = ECONNREFUSED}).verdict, Verdict::Ok);
  EXPECT_EQ(judge_peer("a:80", {.target = "10.0.0.1:80", .error = ETIMEDOUT}).text,
            "a:80 cannot be reached: no answer");
  EXPECT_EQ(judge_peer("a:80", {.target = "10.0.0.1:80", .error = EHOSTUNREACH}).verdict, Verdict::Problem);
  EXPECT_EQ(judge_peer("a:80", {}).advice, "write its IP address, or add it to /etc/hosts");
  EXPECT_EQ(judge_torch("/t/lib", "2.9.1", "2.9.1").text, "LibTorch 2.9.1 in /t/lib");
  EXPECT_EQ(judge_torch("/t/lib", "", "2.9.1").verdict, Verdict::Ok);
  EXPECT_EQ(judge_torch("/t/lib", "2.8.0", "2.9.1").verdict, Verdict::Warning);
  EXPECT_EQ(judge_clock("12:00", false, true).verdict, Verdict::Warning);
  EXPECT_EQ(judge_clock("12:00", false, false).text, "the clock says 12:00 and is not synchronised");
  EXPECT_EQ(judge_loopback(3e9).text, "3.0 GB/s between two sockets of this machine");
  EXPECT_EQ(judge_loopback(1e8).verdict, Verdict::Warning);
  struct Row {
    Limits limits;
    int workers;
    Verdict files, memory, cores;
  };
  const auto ok = Verdict::Ok, warning = Verdict::Warning;
  for (const auto& row : std::vector<Row>{{{1024, 8'000'000'000, {}, 4, 4}, 2, ok, ok, ok},
                                          {{1024, 8'000'000'000, {}, 4, 4}, 200, warning, ok, ok},
                                          {{1024, 8'000'000'000, 500'000'000, 4, 4}, 2, ok, warning, ok},
                                          {{1024, 8'000'000'000, 16'000'000'000, 2, 16}, 2, ok, ok, warning}}) {
    const auto findings = judge_limits(row.limits, row.workers);
    ASSERT_EQ(findings.size(), 3u);
    EXPECT_EQ(findings[0].verdict, row.files) << findings[0].text;
    EXPECT_EQ(findings[1].verdict, row.memory) << findings[1].text;
    EXPECT_EQ(findings[2].verdict, row.cores) << findings[2].text;
  }
}

TEST(Findings, PrintAVerdictAndWhatToDo) {
  const std::vector<Finding> findings{
      {Verdict::Ok, "fine"}, {Verdict::Warning, "odd", "look"}, {Verdict::Problem, "bad", "mend"}};
  EXPECT_EQ(to_string(findings[0]) + to_string(findings[2]), "ok       fine\nproblem  bad\n         mend\n");
  EXPECT_EQ(summary(findings), "1 problem, 1 warning");
  EXPECT_EQ(exit_code(findings), 1);
  EXPECT_EQ(exit_code({findings[0], findings[1]}), 0);
  EXPECT_EQ(summary({findings[0]}), "all is well");
}

}  // namespace
}  // namespace lockstep::app
