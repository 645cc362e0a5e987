// Faults that need real processes: which member is named, on which others, and how soon. Times are recorded as test
// properties against the limits of a quiet machine; the test allows ten times as much, because the machine may be busy.

#include <gtest/gtest.h>

#include <chrono>
#include <cstdlib>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "tests/support/member_processes.h"
#include "tests/support/three_hosts.h"
#include "tests/support/two_hosts.h"
#include "tests/support/watchdog.h"

namespace lockstep::coordination {
namespace {

using namespace std::chrono_literals;
using Clock = std::chrono::steady_clock;
using Processes = std::vector<std::unique_ptr<MemberProcess>>;

#define EXPECT_HAS(text, fragment) EXPECT_NE((text).find(fragment), std::string::npos) << (text)

class Faults : public ::testing::Test {
 protected:
  static Processes start(const std::vector<std::string>& addresses, std::vector<std::string> settings = {}) {
    settings.insert(settings.begin(), {"join=60000", "cluster=a"});
    Processes all;
    for (std::size_t i = 0; i < addresses.size(); ++i) {
      all.push_back(std::make_unique<MemberProcess>(static_cast<int>(i), addresses, settings));
    }
    return all;
  }

  static void await_joined(const Processes& all) {
    for (const auto& one : all) EXPECT_NE(one->await("joined"), "");
  }

  // Milliseconds from `since` until `process` received the failure, whose line goes into `text`.
  static double notice(MemberProcess& process, Clock::time_point since, std::string& text) {
    const std::string line = process.await("failure");
    if (line.empty()) return 1e9;
    text = line.substr(line.find(" L") + 1);
    const long long at = std::stoll(line.substr(8));
    return static_cast<double>(at - since.time_since_epoch().count()) / 1e6;
  }

  static void quit_all(const Processes& all) {
    for (const auto& one : all) one->send_line("quit");
    for (const auto& one : all) EXPECT_EQ(one->wait(), 0) << one->output();
  }

  static void record(const std::string& what, double milliseconds, double limit) {
    RecordProperty(what, std::to_string(milliseconds));
    std::printf("    %s: %.1f ms (limit %.0f)\n", what.c_str(), milliseconds, limit);
    EXPECT_LT(milliseconds, 10 * limit) << what;
  }

 private:
  Watchdog watchdog_{120s, "a test with processes"};
};

TEST_F(Faults, WorkersMayStartInAnyOrder) {
  const auto addresses = free_addresses(3);
  MemberProcess last(2, addresses, {"log=50"});
  EXPECT_HAS(last.await("log"), "waiting for worker 0 (" + addresses[0] + "), the chief: connection refused");
  MemberProcess chief(0, addresses, {"log=50"});
  const std::string line = chief.await("log worker 0: waiting");
  EXPECT_HAS(line, "worker 1 (" + addresses[1] + "): connection refused");
  EXPECT_HAS(line, "; here: worker 0");
  EXPECT_HAS(last.await("log worker 2: waiting for worker 1"), "connection refused");
  MemberProcess middle(1, addresses, {"log=50"});
  const std::string generation = chief.await("joined");
  EXPECT_EQ(middle.await("joined"), generation);
  EXPECT_EQ(last.await("joined"), generation);
}

/// For tests in which the time to join ends: it is short, but on a busy machine it must not end before the present
/// workers have met. `attempt` returns whether they have; if not, it gets more time.
void with_time_to_meet(const std::function<bool(milliseconds limit)>& attempt) {
  for (const milliseconds limit : {600ms, 2400ms, 9600ms}) {
    if (attempt(limit)) return;
  }
  ADD_FAILURE() << "workers that are there do not meet";
}

const std::string kWorker2HasMetTheChief = "log worker 2: waiting for worker 1";

TEST_F(Faults, AMissingWorkerIsNamedWhenAllGiveUp) {
  with_time_to_meet([](milliseconds limit) {
    const auto addresses = free_addresses(3);
    MemberProcess other(2, addresses, {"join=30000", "log=100"});
    EXPECT_NE(other.await("log worker 2: waiting for worker 0"), "");
    MemberProcess chief(0, addresses, {str("join=", limit.count()), "log=100"});
    EXPECT_EQ(chief.wait(), 1);
    if (!contains(other.output(), kWorker2HasMetTheChief)) return false;
    for (MemberProcess* one : {&chief, &other}) {
      const std::string error = one->await("error");
      EXPECT_HAS(error, "error L105");
      EXPECT_HAS(error, "missing: worker 1 (" + addresses[1] + "): connection refused");
      EXPECT_EQ(one->wait(), 1);
    }
    return true;
  });
  const auto addresses = free_addresses(3);
  MemberProcess alone(1, addresses, {"join=300", "log=100"});
  EXPECT_HAS(alone.await("error"), "missing: worker 0 (" + addresses[0] + "), the chief: connection refused");
}

// The limits of workers that were started together do not end at the same moment.
TEST_F(Faults, WhoIsHereIsNotMissingBecauseItsLimitEndsFirst) {
  with_time_to_meet([](milliseconds limit) {
    const auto addresses = free_addresses(3);
    MemberProcess chief(0, addresses, {str("join=", (limit + 1s).count()), "log=100"});
    EXPECT_NE(chief.await("log worker 0: waiting for"), "");
    MemberProcess other(2, addresses, {str("join=", limit.count()), "log=100"});
    if (!other.prints(kWorker2HasMetTheChief)) return false;
    for (MemberProcess* one : {&chief, &other}) {
      EXPECT_HAS(one->await("error L105"), "missing: worker 1 (" + addresses[1] + "): connection refused   ");
      EXPECT_EQ(one->wait(), 1);
      EXPECT_EQ(one->output().find("ended without leaving"), std::string::npos) << one->output();
    }
    return true;
  });
}

TEST_F(Faults, ANameThatIsNotKnownIsSaid) {
  auto addresses = free_addresses(2);
  addresses[1] = "no-such-host.invalid:2222";
  MemberProcess chief(0, addresses, {"join=300", "log=100"});
  EXPECT_HAS(chief.await("error", 60s), "worker 1 (no-such-host.invalid:2222): name not known");
}

TEST_F(Faults, AKilledWorkerIsNamedOnAllSurvivors) {
  const auto all = start(free_addresses(3));
  await_joined(all);
  all[2]->ask("place 812 all-reduce 3");
  all[2]->ask("states");
  std::this_thread::sleep_for(700ms);
  const auto since = Clock::now();
  all[2]->signal(SIGKILL);
  for (const std::size_t i : {0u, 1u}) {
    std::string text;
    record(str("killed_noticed_by_", i), notice(*all[i], since, text), 100);
    EXPECT_HAS(text, "L104: worker 2 (");
    EXPECT_HAS(text, "ended without leaving");
    EXPECT_HAS(text, str("call 812 of run, all-reduce 3; host "));
    EXPECT_HAS(text, str("pid ", all[2]->pid()));
  }
  EXPECT_HAS(all[0]->ask("barrier end 1000"), "error L104");
  for (const std::size_t i : {0u, 1u}) {
    all[i]->send_line("quit");
    const std::string ended = all[i]->await("ended ");
    record(str("closed_after_failure_", i), std::stod(ended.substr(6)), 1000);
  }
}

TEST_F(Faults, AFrozenWorkerIsNamedAndLearnsItWhenItWakes) {
  const auto all = start(free_addresses(3), {"heartbeat=50", "dead=600"});
  await_joined(all);
  const auto since = Clock::now();
  all[1]->signal(SIGSTOP);
  for (const std::size_t i : {0u, 2u}) {
    std::string text;
    record(str("frozen_noticed_by_", i), notice(*all[i], since, text), 700);
    EXPECT_HAS(text, "L104: worker 1 (");
    EXPECT_HAS(text, "stopped answering");
  }
  all[1]->signal(SIGCONT);
  std::string text;
  notice(*all[1], since, text);
  EXPECT_HAS(text, "L104: worker 1 (");
}

TEST_F(Faults, AShortPauseIsOnlyAWarning) {
  const auto all = start(free_addresses(2), {"heartbeat=50", "dead=4000"});
  await_joined(all);
  all[1]->signal(SIGSTOP);
  std::this_thread::sleep_for(1500ms);
  all[1]->signal(SIGCONT);
  const std::string line = all[0]->await("log worker 1");
  EXPECT_HAS(line, "did not answer for 1.");
  EXPECT_HAS(line, "and is back");
  all[1]->send_line("barrier after 10000");
  EXPECT_EQ(all[0]->ask("barrier after 10000"), "ok ");
  EXPECT_EQ(all[1]->await_answer(), "ok ");
  quit_all(all);
}

TEST_F(Faults, APauseOfTheChiefBlamesNobodyElse) {
  const auto all = start(free_addresses(2), {"heartbeat=50", "dead=4000"});
  await_joined(all);
  all[0]->signal(SIGSTOP);
  std::this_thread::sleep_for(2000ms);
  all[0]->signal(SIGCONT);
  all[1]->send_line("barrier after 10000");
  EXPECT_EQ(all[0]->ask("barrier after 10000"), "ok ");
  quit_all(all);
}

TEST_F(Faults, TheChiefsDeathIsNoticedAsFast) {
  const auto all = start(free_addresses(3));
  await_joined(all);
  const auto since = Clock::now();
  all[0]->signal(SIGKILL);
  for (const std::size_t i : {1u, 2u}) {
    std::string text;
    record(str("chief_killed_noticed_by_", i), notice(*all[i], since, text), 100);
    EXPECT_HAS(text, "L117: worker 0 (");
    EXPECT_HAS(text, str("pid ", all[0]->pid()));
    all[i]->send_line("quit");
    EXPECT_EQ(all[i]->wait(), 0);
  }
}

TEST_F(Faults, AFrozenChiefIsNamed) {
  const auto all = start(free_addresses(2), {"heartbeat=50", "dead=600"});
  await_joined(all);
  const auto since = Clock::now();
  all[0]->signal(SIGSTOP);
  std::string text;
  record("frozen_chief_noticed", notice(*all[1], since, text), 700);
  EXPECT_HAS(text, "L117: worker 0 (");
  EXPECT_HAS(text, "stopped answering");
}

TEST_F(Faults, ACutNetworkIsNoticedOnBothSides) {
  const TwoHosts hosts;
  if (!hosts.made()) GTEST_SKIP() << "needs root and network namespaces";
  const std::vector<std::string> addresses{"10.77.0.1:2222", "10.77.0.1:2223", "10.77.0.2:2222"};
  const std::vector<std::string> settings{"join=60000", "key=" + std::string(32, 'k')};
  Processes all;
  for (int i = 0; i < 3; ++i)
    all.push_back(std::make_unique<MemberProcess>(i, addresses, settings, TwoHosts::on(i == 2 ? 'b' : 'a')));
  await_joined(all);
  all[2]->ask("place 812 all-reduce 3");
  std::this_thread::sleep_for(700ms);
  const auto since = Clock::now();
  ASSERT_TRUE(hosts.pull_out());
  for (std::size_t i = 0; i < 3; ++i) {
    std::string text;
    record(str("cut_noticed_by_", i), notice(*all[i], since, text), 3000);
    EXPECT_HAS(text, i == 2 ? "L117: worker 0 (10.77.0.1:2222), the chief, stopped answering"
                            : "L104: worker 2 (10.77.0.2:2222) stopped answering");
    if (i != 2) {
      EXPECT_HAS(text, "call 812 of run, all-reduce 3");
    }
  }
  for (const auto& one : all) {
    EXPECT_HAS(one->ask("barrier end 1000"), "error L1");
    one->send_line("quit");
    EXPECT_EQ(one->wait(), 0) << one->output();
  }
}

TEST_F(Faults, AChiefThatIsCutOffFromAllOthersSaysSo) {
  const ThreeHosts hosts;
  if (!hosts.made()) GTEST_SKIP() << "needs root and network namespaces";
  Strings addresses;
  for (int i = 0; i < 3; ++i) addresses.push_back(ThreeHosts::address(i) + ":2222");
  Processes all;
  for (int i = 0; i < 3; ++i)
    all.push_back(std::make_unique<MemberProcess>(i, addresses, Strings{"join=60000", "key=" + std::string(32, 'k')},
                                                  ThreeHosts::on(i)));
  await_joined(all);
  std::this_thread::sleep_for(700ms);
  const auto since = Clock::now();
  ASSERT_TRUE(hosts.unplug(0));
  for (std::size_t i = 0; i < 3; ++i) {
    std::string text;
    record(str("cut_chief_noticed_by_", i), notice(*all[i], since, text), 3000);
    EXPECT_HAS(text, i == 0 ? "L117: worker 0 (10.77.1.1:2222), the chief, is cut off from all other hosts"
                            : "L117: worker 0 (10.77.1.1:2222), the chief, stopped answering");
  }
}

TEST_F(Faults, ATakenPortIsNamedWithItsHolder) {
  const auto addresses = free_addresses(2);
  const int socket = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  const std::string port = addresses[1].substr(addresses[1].find(':') + 1);
  address.sin_port = htons(static_cast<std::uint16_t>(std::stoi(port)));
  ASSERT_EQ(::bind(socket, reinterpret_cast<sockaddr*>(&address), sizeof address), 0);
  ASSERT_EQ(::listen(socket, 1), 0);
  const auto since = Clock::now();
  // Once as a worker, once as the chief of another list.
  for (const auto& list : {addresses, std::vector<std::string>{addresses[1], addresses[0]}}) {
    MemberProcess one(list == addresses ? 1 : 0, list);
    const std::string error = one.await("error L106");
    EXPECT_HAS(error, "port " + port + " of worker ");
    EXPECT_HAS(error, str("process ", ::getpid(), " (comm_"));
  }
  record("taken_port_noticed_twice", std::chrono::duration<double, std::milli>(Clock::now() - since).count(), 2000);
  ::close(socket);
}

TEST_F(Faults, OfTwoProcessesWithOneIndexBothAreTold) {
  const auto addresses = free_addresses(3);
  const auto all = start(addresses);
  await_joined(all);
  for (const int index : {1, 0}) {
    MemberProcess second(index, addresses, {"cluster=a"});
    const std::string error = second.await("error L107");
    EXPECT_HAS(error,
               str("worker ", index, " (", addresses[static_cast<std::size_t>(index)], ") is already in the job"));
    EXPECT_HAS(error, str("by pid ", all[static_cast<std::size_t>(index)]->pid(), " on host "));
    const std::string line = all[static_cast<std::size_t>(index)]->await(
        str("log worker ", index, ": a second process (pid ", second.pid(), " "));
    EXPECT_HAS(line, str("tried to join as worker ", index, ", which is held for"));
  }
  quit_all(all);
}

TEST_F(Faults, DifferentClustersAreShownToAll) {
  struct Case {
    std::string chiefs, others, difference;
  };
  for (const Case& one : {Case{"cluster=a", "cluster=x", "worker 0 has \"a\", worker 1 has \"x\""},
                          Case{R"(cluster={"worker":["a:1","b:1"]})", R"(cluster={"worker":["a:1","c:1"]})",
                               "worker 1 is b:1 on worker 0, but c:1 on worker 1"}}) {
    const auto addresses = free_addresses(3);
    MemberProcess chief(0, addresses, {one.chiefs, "log=50"});
    MemberProcess same(2, addresses, {one.chiefs, "log=50"});
    same.await(
        "log worker 2: waiting for worker 1");  // it is in; a worker that comes after the chief gave up finds no chief
    MemberProcess other(1, addresses, {one.others});
    for (MemberProcess* process : {&chief, &other, &same}) {
      const std::string error = process->await("error L108");
      EXPECT_HAS(error, one.difference);
    }
  }
}

TEST_F(Faults, AWrongOrMissingKeyIsRefusedAndTheJobGoesOn) {
  const auto addresses = free_addresses(2);
  const std::string key(32, 'k');
  MemberProcess chief(0, addresses, {"key=" + key});
  EXPECT_HAS(MemberProcess(1, addresses, {"key=" + std::string(32, 'x')}).await("error L111"),
             "the chief's job key does not match");
  EXPECT_HAS(MemberProcess(1, addresses).await("error L111"), "the chief has a job key and this worker has none");
  MemberProcess right(1, addresses, {"key=" + key});
  EXPECT_NE(chief.await("joined"), "");
  EXPECT_NE(right.await("joined"), "");
  EXPECT_HAS(MemberProcess(0, {"192.0.2.1:2222"}).await("error L111"), "needs a job key");
}

TEST_F(Faults, AnOldIncarnationIsRefused) {
  const auto addresses = free_addresses(2);
  MemberProcess chief(0, addresses, {"incarnation=2"});
  EXPECT_HAS(MemberProcess(1, addresses, {"incarnation=1"}).await("error L118"),
             "it belongs to run 1 of the job; this is run 2");
  MemberProcess right(1, addresses, {"incarnation=2"});
  EXPECT_NE(right.await("joined"), "");
  right.ask("leave 5000");
  EXPECT_HAS(MemberProcess(1, addresses, {"incarnation=2"}).await("error L118"), "it has left before");
}

TEST_F(Faults, AProgramThatFailsTellsAllTheCause) {
  const auto all = start(free_addresses(3));
  await_joined(all);
  all[1]->ask("place 3 user code");
  const auto since = Clock::now();
  all[1]->send_line("fail std::runtime_error: no such file");
  for (const auto& one : all) {
    std::string text;
    record("user_failure_noticed", notice(*one, since, text), 1000);
    EXPECT_HAS(text, "L113: std::runtime_error: no such file | reported by worker 1 (");
    EXPECT_HAS(text, "call 3 of run, user code");
  }
}

TEST_F(Faults, ALateWorkerInABarrierIsWarnedAboutAndNamed) {
  const auto all = start(free_addresses(2), {"slow=300", "heartbeat=50"});
  await_joined(all);
  all[1]->ask("place 9 reading data");
  all[0]->send_line("barrier step 20000");
  const std::string line = all[0]->await("log worker 0: barrier \"step\" has waited");
  EXPECT_HAS(line, "missing: worker 1 (");
  EXPECT_HAS(line, "call 9 of run, reading data");
  EXPECT_EQ(all[1]->ask("barrier step 20000"), "ok ");
  EXPECT_EQ(all[0]->await_answer(), "ok ");
  EXPECT_HAS(all[1]->ask("states"), "worker 0 here ; worker 1 here call 9 of run, reading data");
  quit_all(all);
}

TEST_F(Faults, AWorkerThatLeavesIsNoFailure) {
  const auto all = start(free_addresses(3), {"leave=20000"});
  await_joined(all);
  all[1]->send_line("quit");
  EXPECT_EQ(all[1]->wait(), 0);
  EXPECT_EQ(all[0]->ask("set a b"), "ok ");
  EXPECT_EQ(all[2]->ask("get a 1000"), "ok b");
  EXPECT_HAS(all[2]->ask("barrier x 20000"), "worker 1 (");

  all[0]->send_line("quit");  // waits for worker 2
  EXPECT_EQ(all[2]->ask("get a 1000"), "ok b");
  all[2]->send_line("quit");
  EXPECT_EQ(all[2]->wait(), 0);
  EXPECT_EQ(all[0]->wait(), 0);
}

// Scaling: 20 processes, or 100 with LOCKSTEP_TEST_LONG=1; a sanitizer makes each of them take seconds to start.
TEST_F(Faults, ManyLightWorkersStartMeetAndNotice) {
  const bool is_long = std::getenv("LOCKSTEP_TEST_LONG") != nullptr;
  const int count = is_long ? 100 : LOCKSTEP_FEW_PROCESSES ? 6 : 20;
  const auto addresses = free_addresses(count);
  auto since = Clock::now();
  const auto elapsed = [&] { return std::chrono::duration<double, std::milli>(Clock::now() - since).count(); };
  const auto all = start(addresses, {"dead=20000"});
  await_joined(all);
  record("start", elapsed(), 10'000);
  since = Clock::now();
  for (const auto& one : all) one->send_line("barrier all 60000");
  for (const auto& one : all) EXPECT_EQ(one->await_answer(), "ok ");
  record("barrier", elapsed(), 500);
  for (const std::size_t i : {std::size_t{0}, all.size() - 1}) {
    const std::string who = i == 0 ? "chief" : "worker";
    for (const char* line : {"VmHWM", "RssAnon", "Threads"}) {
      RecordProperty(who + "_" + line, std::to_string(all[i]->status(line)));
      std::printf("    %s %s: %ld\n", who.c_str(), line, all[i]->status(line));
    }
  }
  if (is_long) {
    const double before = all[0]->cpu_seconds();
    std::this_thread::sleep_for(10s);
    record("chief_cpu_ms_per_s_of_heartbeats", 100 * (all[0]->cpu_seconds() - before), 100);
  }
  since = Clock::now();
  all.back()->signal(SIGKILL);
  double slowest = 0;
  for (int i = 0; i + 1 < count; ++i) {
    std::string text;
    slowest = std::max(slowest, notice(*all[static_cast<std::size_t>(i)], since, text));
    EXPECT_HAS(text, str("L104: worker ", count - 1, " ("));
  }
  record("failure_noticed_by_all", slowest, 500);
}

}  // namespace
}  // namespace lockstep::coordination
