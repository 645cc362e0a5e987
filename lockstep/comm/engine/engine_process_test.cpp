#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <csignal>
#include <map>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "lockstep/base/text.h"
#include "tests/support/errors.h"
#include "tests/support/folder_store.h"
#include "tests/support/temporary_folder.h"

namespace lockstep::engine {
namespace {

using namespace std::chrono_literals;

/// Workers as processes; killed if the test ends before them.
class Workers {
 public:
  Workers(const std::string& scenario, int workers, int replicas, const std::string& program = LOCKSTEP_ENGINE_WORKER)
      : store_(folder_store(folder_.path().string())) {
    for (int rank = 0; rank < workers; ++rank) {
      const std::vector<std::string> words{
          program, scenario, str(rank), str(workers), str(replicas), folder_.path().string(), LOCKSTEP_ENGINE_FILE};
      std::vector<char*> arguments;
      for (const std::string& word : words) arguments.push_back(const_cast<char*>(word.c_str()));
      arguments.push_back(nullptr);
      const pid_t child = ::fork();
      if (child == 0) {
        ::execv(arguments[0], arguments.data());
        ::_exit(127);
      }
      children_.push_back(child);
    }
  }
  ~Workers() {
    for (const pid_t child : children_) ::kill(child, SIGKILL);
    for (const pid_t child : children_) ::waitpid(child, nullptr, 0);
  }

  void send(int rank, int signal) { ::kill(children_[static_cast<std::size_t>(rank)], signal); }
  std::string get(const std::string& key) { return store_.get(key, Deadline::after(60s)); }
  std::string result(int rank) { return get(str("result.", rank)); }

 private:
  TemporaryFolder folder_;
  EngineStore store_;
  std::vector<pid_t> children_;
};

/// The results with workers x replicas = `ids`, in every arrangement.
std::set<std::string> seen_by_all_topologies(const std::string& scenario, int ids) {
  std::set<std::string> seen;
  for (int workers = 1; workers <= ids; ++workers) {
    if (ids % workers != 0) continue;
    Workers job(scenario, workers, ids / workers);
    for (int rank = 0; rank < workers; ++rank) seen.insert(job.result(rank));
  }
  return seen;
}

void expect_one_digest(const std::set<std::string>& seen) {
  EXPECT_EQ(seen.size(), 1U) << *seen.begin();
  EXPECT_EQ(seen.begin()->find_first_not_of("0123456789"), std::string::npos) << *seen.begin();
}

TEST(EngineProcesses, EveryTopologyGivesTheSameBits) {
  for (const int ids : {4, 6}) expect_one_digest(seen_by_all_topologies("digest", ids));
}

constexpr const char* kRuntimeInside = "the program has a C++ runtime of its own inside";

TEST(EngineProcesses, EveryTopologyGivesTheSameBitsBesideGloosRing) {
  for (const int ids : {4, 6}) {
    const auto seen = seen_by_all_topologies("digest next to the ring", ids);
    if (contains(*seen.begin(), kRuntimeInside)) GTEST_SKIP() << "this compiler links its C++ runtime statically";
    expect_one_digest(seen);
  }
}

#ifdef LOCKSTEP_ENGINE_WORKER_WITH_RUNTIME
TEST(EngineProcesses, AProgramWithItsOwnCppRuntimeIsToldThatGloosRingNeedsTheSharedOne) {
  Workers job("digest next to the ring", 1, 2, LOCKSTEP_ENGINE_WORKER_WITH_RUNTIME);
  EXPECT_TRUE(contains(job.result(0), kRuntimeInside)) << job.result(0);
}
#endif

TEST(EngineProcesses, AKilledWorkerIsNamedByAllOthersAtOnce) {
  constexpr int kWorkers = 3;
  Workers job("reduce", kWorkers, 1);
  for (int rank = 0; rank < kWorkers; ++rank) job.get(str("running.", rank));
  const double killed = std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
  job.send(1, SIGKILL);
  for (const int rank : {0, 2}) {
    const std::string result = job.result(rank);
    const double noticed = std::stod(result);
    EXPECT_TRUE(contains(result, str("\n", errors::kPeerLost, "\nworker 1 stopped answering\nall-reduce SUM of ")))
        << result;
    EXPECT_TRUE(contains(result, "logged"));
    EXPECT_LT(noticed - killed, 1.0);  // ten times the goal
    std::printf("worker %d noticed after %.1f ms\n", rank, 1e3 * (noticed - killed));
  }
}

}  // namespace
}  // namespace lockstep::engine
