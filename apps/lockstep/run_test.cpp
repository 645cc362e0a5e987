// The launcher with real processes.

#include <fcntl.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <map>
#include <sstream>
#include <string>
#include <vector>

#include "tests/support/launches.h"

namespace lockstep {
namespace {

TEST(Run, PrefixesEveryLineAndKeepsStreamsApart) {
  Launch launch(run(3, {"print", "hello", "error", "careful", "partial", "no newline"}));
  EXPECT_EQ(launch.wait(), 0);
  for (int worker = 0; worker < 3; ++worker) {
    const auto prefix = "[worker " + std::to_string(worker) + "] ";
    EXPECT_EQ(count(launch.out(), prefix + "hello\n"), 1) << launch.out();
    EXPECT_EQ(count(launch.out(), prefix + "no newline\n"), 1) << launch.out();
    EXPECT_EQ(count(launch.err(), prefix + "careful\n"), 1) << launch.err();
  }
  EXPECT_EQ(count(launch.out(), "\n"), 6);
  EXPECT_EQ(count(launch.err(), "\n"), 3);
}

TEST(Run, TearsNoLineUnderLoad) {
  const TemporaryFolder logs;
  Launch launch(run(4, {"lines", "10000"}, {"--log-dir", logs / "new"}));
  ASSERT_EQ(launch.wait(seconds(60)), 0);
  std::map<std::string, int> next;
  for (const auto& [text, parity] : {std::pair{launch.out(), 0}, std::pair{launch.err(), 1}}) {
    std::istringstream in(text);
    std::map<int, int> expected;
    for (std::string line; std::getline(in, line);) {
      int worker = -1, task = -1, number = -1, length = 0;
      ASSERT_EQ(sscanf(line.c_str(), "[worker %d] %d:%d %n", &worker, &task, &number, &length), 3) << line;
      ASSERT_EQ(worker, task);
      ASSERT_EQ(number, 2 * expected[worker]++ + parity);
      ASSERT_EQ(line.substr(static_cast<size_t>(length)), std::string(static_cast<size_t>(number % 97), 'x'));
    }
    for (int worker = 0; worker < 4; ++worker) EXPECT_EQ(expected[worker], 5000);
  }
  EXPECT_EQ(count(file_content(logs / "new/worker-3.log"), "\n"), 10000);
}

TEST(Run, TellsWorkersAboutTheirJob) {
  Launch launch(run(2, {"environment", "TF_CONFIG", "environment", "LOCKSTEP_JOB_KEY", "environment", "LOCKSTEP_RUN_ID",
                        "environment", "LOCKSTEP_GENERATION"}));
  EXPECT_EQ(launch.wait(), 0);
  std::istringstream in(launch.out());
  std::map<std::string, Strings> lines;
  for (std::string line; std::getline(in, line);) lines[line.substr(0, 11)].push_back(line.substr(11));
  const auto &first = lines["[worker 0] "], &second = lines["[worker 1] "];
  ASSERT_EQ(first.size(), 4u);
  ASSERT_EQ(second.size(), 4u);
  EXPECT_TRUE(contains(first[0], R"("task":{"type":"worker","index":0})")) << first[0];
  EXPECT_EQ(first[1].size(), 64u);
  for (size_t i = 1; i < 4; ++i) EXPECT_EQ(first[i], second[i]);
}

TEST(Run, StartsAnEvaluatorThatEndsAfterTheWorkers) {
  Launch launch(
      run(2, {"environment", "TF_CONFIG", "role", "evaluator", "sleep", "0.5", "print", "evaluated"}, {"--evaluator"}));
  EXPECT_EQ(launch.wait(), 0) << launch.err();
  EXPECT_TRUE(contains(launch.out(), "[evaluator] {\"cluster\":{\"evaluator\":[\"127.0.0.1:")) << launch.out();
  EXPECT_TRUE(contains(launch.out(), R"("task":{"type":"evaluator","index":0})")) << launch.out();
  EXPECT_EQ(count(launch.out(), R"("task":{"type":"worker")"), 2) << launch.out();
  EXPECT_EQ(count(launch.out(), "[evaluator] evaluated\n"), 1) << launch.out();
  EXPECT_EQ(launch.err(), "");
}

TEST(Run, StopsAnEvaluatorThatGoesOnAfterTheWorkers) {
  for (const Strings& stop : {Strings{"leave", kTerm, "7"}, Strings{"ignore", kTerm}, Strings{}}) {
    Strings script{"role", "evaluator"};
    script.insert(script.end(), stop.begin(), stop.end());
    script.insert(script.end(), {"sleep", "100"});
    Launch launch(run(2, script, {"--evaluator", "--grace", "0.2"}));
    EXPECT_EQ(launch.wait(), 0) << launch.err();
    EXPECT_EQ(launch.err(), "lockstep: the evaluator did not end within 0.2 s after the workers: stopped\n");
  }
}

TEST(Run, AnEvaluatorMayEndBeforeTheWorkers) {
  Launch launch(run(2, {"role", "worker", "sleep", "0.5", "print", "trained"}, {"--evaluator", "--grace", "0.1"}));
  EXPECT_EQ(launch.wait(), 0) << launch.err();
  EXPECT_EQ(count(launch.out(), "trained\n"), 2) << launch.out();
}

TEST(Run, AnEvaluatorThatFailsEndsTheJob) {
  Launch launch({"run", "-n", "2", "--evaluator", "--failure-grace", "0.1", "sh", "-c",
                 "case $TF_CONFIG in *'\"type\":\"evaluator\"'*) exit 4;; esac; sleep 100"});
  EXPECT_EQ(launch.wait(), 4);
  EXPECT_EQ(count(launch.err(), "lockstep: evaluator (pid "), 1) << launch.err();
}

TEST(Run, PassesTheExitCodeOn) {
  for (const auto& [script, code] : std::vector<std::pair<Strings, int>>{
           {{"exit", "0"}, 0}, {{"exit", "5"}, 5}, {{"abort"}, 1}, {{"kill", "9"}, 3}, {{"exit", "143"}, 143}})
    EXPECT_EQ(Launch(run(2, script)).wait(), code) << script[0];
}

TEST(Run, NamesTheCauseOnceAndStopsTheRest) {
  const TemporaryFolder pids;
  Launch launch(run(4,
                    {"pid", pids.path(), "child", pids.path(), "sleep", "0.2", "error", "about to fail", "only", "2",
                     "error", "error[L504]: loss is NaN", "exit", "4"},
                    {"--failure-grace", "0.1"}));
  EXPECT_EQ(launch.wait(), 4);
  EXPECT_EQ(count(launch.err(), "lockstep: worker 2 (pid "), 1) << launch.err();
  EXPECT_EQ(count(launch.err(), "lockstep: worker"), 1) << launch.err();
  EXPECT_TRUE(contains(launch.err(), "exited with code 4")) << launch.err();
  EXPECT_TRUE(contains(launch.err(), "\n  | error[L504]: loss is NaN\n")) << launch.err();
  EXPECT_TRUE(are_gone(processes(pids, 8)));
}

TEST(Run, EndsAJobThatWaitsForAWorkerThatHasEnded) {
  Launch launch({"run", "-n", "2", "--failure-grace", "100", "sh", "-c",
                 "case $TF_CONFIG in *'\"index\":1'*) exit 0;; esac; sleep 0.5; "
                 "echo 'lockstep: worker 0: waiting for worker 1 (a:2): connection refused; here: worker 0' >&2; "
                 "sleep 100"});
  EXPECT_EQ(launch.wait(), 1);
  EXPECT_EQ(count(launch.err(), "exited with code 0 before it joined the others"), 1) << launch.err();
}

TEST(Run, KillsWorkersThatDoNotStopAfterAFailure) {
  const TemporaryFolder pids;
  Launch launch({"run", "-n", "2", "--failure-grace", "0.1", "sh", "-c",
                 "trap '' TERM; touch " + pids.path().string() +
                     "/$$; case $TF_CONFIG in *'\"index\":1'*) exit 7;; esac; sleep 100"});
  EXPECT_EQ(launch.wait(), 7);
  EXPECT_TRUE(are_gone(processes(pids, 2)));
}

TEST(Run, CtrlCReachesEveryWorkerOnce) {
  const TemporaryFolder pids, counts;
  Launch launch(run(2, {"count", kInt, counts / "hits", "leave", kTerm, "143", "pid", pids.path(), "sleep", "100"},
                    {"--grace", "1"}));
  const auto workers = processes(pids, 2);
  kill(-launch.pid(), SIGINT);  // to the whole foreground group, as a terminal does
  EXPECT_EQ(launch.wait(), 130);
  EXPECT_EQ(file_content(counts / "hits"), "xx");
  EXPECT_TRUE(contains(launch.err(), "2 workers did not stop in time")) << launch.err();
  EXPECT_TRUE(are_gone(workers));
}

TEST(Run, ASecondCtrlCKillsAtOnce) {
  const TemporaryFolder pids;
  Launch launch(run(2, {"ignore", kInt, "pid", pids.path(), "sleep", "100"}, {"--grace", "100"}));
  const auto workers = processes(pids, 2);
  kill(launch.pid(), SIGINT);
  EXPECT_EQ(launch.wait(seconds(1)), -1);
  kill(launch.pid(), SIGINT);
  EXPECT_EQ(launch.wait(), 130);
  EXPECT_TRUE(are_gone(workers));
}

TEST(Run, SigtermLetsWorkersSave) {
  const TemporaryFolder pids;
  Launch launch(run(2, {"leave", kTerm, "143", "pid", pids.path(), "sleep", "100"}));
  processes(pids, 2);
  kill(launch.pid(), SIGTERM);
  EXPECT_EQ(launch.wait(), 143);
  EXPECT_EQ(launch.err(), "");
}

// The launcher is two processes. Whichever is killed, everything that a worker started dies too.
class KilledLauncher : public testing::TestWithParam<bool> {};

TEST_P(KilledLauncher, LeavesNothingBehind) {
  const TemporaryFolder pids;
  Launch launch(
      run(2, {"ignore", kTerm, "child", pids.path(), "daemon", pids.path(), "pid", pids.path(), "sleep", "100"}));
  auto started = processes(pids, 6);
  std::istringstream children(
      file_content("/proc/" + std::to_string(launch.pid()) + "/task/" + std::to_string(launch.pid()) + "/children"));
  pid_t keeper = 0;
  if (!(children >> keeper)) GTEST_SKIP() << "this kernel does not list the children of a process";
  started.push_back(keeper);
  kill(GetParam() ? launch.pid() : keeper, SIGKILL);
  EXPECT_TRUE(are_gone(started));
  EXPECT_EQ(launch.wait(), GetParam() ? 1000 + SIGKILL : 3);
}

INSTANTIATE_TEST_SUITE_P(Either, KilledLauncher, testing::Bool(),
                         [](const auto& which) { return which.param ? "First" : "Keeper"; });

TEST(Run, AKilledLauncherWaitsForNoGrace) {
  const TemporaryFolder pids;
  Launch launch(run(2, {"ignore", kTerm, "pid", pids.path(), "sleep", "100"}, {"--grace", "100"}));
  const auto workers = processes(pids, 2);
  kill(launch.pid(), SIGTERM);
  EXPECT_EQ(launch.wait(seconds(1)), -1);
  kill(launch.pid(), SIGKILL);
  EXPECT_TRUE(are_gone(workers));
}

TEST(Run, LeavesNoGrandchildBehindWhenAllEndWell) {
  const TemporaryFolder pids;
  Launch launch(run(2, {"child", pids.path(), "daemon", pids.path(), "sleep", "0.2", "print", "done"}));
  EXPECT_EQ(launch.wait(), 0);
  EXPECT_TRUE(are_gone(processes(pids, 4), seconds(1)));
  EXPECT_EQ(count(launch.out(), "done\n"), 2);
}

TEST(Run, RestartsWithANewGeneration) {
  const TemporaryFolder pids;
  Launch launch(run(2, {"environment", "LOCKSTEP_GENERATION", "pid", pids.path(), "generation", "0", "exit", "1"},
                    {"--restarts", "2"}));
  EXPECT_EQ(launch.wait(), 0);
  EXPECT_EQ(count(launch.out(), "] 0\n"), 2);
  EXPECT_EQ(count(launch.out(), "] 1\n"), 2);
  EXPECT_EQ(count(launch.err(), "lockstep: restart 1 of 2 in 1 s\n"), 1) << launch.err();
  EXPECT_EQ(processes(pids, 4).size(), 4u);
}

TEST(Run, GivesUpAfterTheLastRestart) {
  Launch launch(run(1, {"exit", "4"}, {"--restarts", "1"}));
  EXPECT_EQ(launch.wait(), 4);
  EXPECT_EQ(count(launch.err(), "exited with code 4"), 2) << launch.err();
}

TEST(Run, CtrlCEndsTheWaitForARestart) {
  Launch launch(run(1, {"exit", "4"}, {"--restarts", "9"}));
  const auto deadline = Deadline::after(seconds(20));
  while (!contains(launch.err(), "restart 2 of 9 in 2 s\n") && !deadline.expired()) poll(nullptr, 0, 5);
  kill(launch.pid(), SIGINT);
  EXPECT_EQ(launch.wait(), 130);
  EXPECT_EQ(count(launch.err(), "exited with code 4"), 2) << launch.err();
}

TEST(Run, ASignalForTheWorkersDoesNotEndTheWaitForARestart) {
  Launch launch(run(1, {"generation", "0", "exit", "4"}, {"--restarts", "1"}));
  const auto deadline = Deadline::after(seconds(20));
  while (!contains(launch.err(), "restart 1 of 1 in 1 s\n") && !deadline.expired()) poll(nullptr, 0, 5);
  kill(launch.pid(), SIGUSR1);
  EXPECT_EQ(launch.wait(), 0) << launch.err();
}

TEST(Run, ATakenPortCostsNoRestart) {
  Launch launch(run(1, {"generation", "0", "error", "error[L106]: port 1 is in use", "exit", "1"}));
  EXPECT_EQ(launch.wait(), 0);
  EXPECT_TRUE(contains(launch.err(), "starting again with new ones")) << launch.err();
}

TEST(Run, AReaderThatGoesAwayStopsTheJob) {
  int ends[2];
  ASSERT_EQ(pipe(ends), 0);
  const TemporaryFolder pids;
  const pid_t pid = fork();
  if (pid == 0) {
    dup2(ends[1], 1);
    dup2(open("/dev/null", O_WRONLY), 2);
    close(ends[0]);
    close(ends[1]);
    execl(LOCKSTEP_PROGRAM, LOCKSTEP_PROGRAM, "run", "-n", "2", "--", LOCKSTEP_TEST_WORKER, "pid", pids.path().c_str(),
          "lines", "100000", "sleep", "100", nullptr);
    _exit(99);
  }
  close(ends[1]);
  const auto workers = processes(pids, 2);
  close(ends[0]);
  EXPECT_TRUE(are_gone(workers, seconds(10)));
  EXPECT_EQ(waitpid(pid, nullptr, 0), pid);
}

}  // namespace
}  // namespace lockstep
