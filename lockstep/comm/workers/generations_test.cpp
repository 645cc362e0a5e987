// Groups of workers that lose one of them and form the next generation in the same processes.

#include <gtest/gtest.h>

#include <cstdlib>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "tests/support/processes.h"
#include "tests/support/watchdog.h"

namespace lockstep {
namespace {

/// A running group_program.
class GroupProcess : public Process {
 public:
  GroupProcess() : Process({LOCKSTEP_GROUP_PROGRAM}, {}, {.input = true, .ends_by_itself = false}) {}

  /// Its answer to the last line sent to it: "ok ..." or "error ..."; empty if none comes.
  std::string answer(milliseconds limit = seconds(60)) {
    for (const auto deadline = Deadline::after(limit);;) {
      const bool was_running = is_running();
      const std::string text = output();
      for (std::size_t end; (end = text.find('\n', read_)) != text.npos;) {
        const std::string line = text.substr(read_, end - read_);
        read_ = end + 1;
        if (line.starts_with("ok") || line.starts_with("error")) return line;
      }
      if (!was_running || deadline.expired()) return {};
      ::poll(nullptr, 0, 1);
    }
  }

 private:
  std::size_t read_ = 0;  // bytes of its output read so far
};

struct Worker {
  std::string address;
  std::unique_ptr<GroupProcess> process = std::make_unique<GroupProcess>();
};

class Generations : public testing::Test {
 protected:
  Generations() {
    for (const auto& address : free_addresses(3)) workers.push_back({address});
  }

  void tell_all(const std::string& line) {
    for (auto& worker : workers) worker.process->send_line(line);
  }
  void expect_ok() {
    for (auto& worker : workers) EXPECT_TRUE(worker.process->answer().starts_with("ok")) << worker.process->output();
  }
  void tell_to_meet() {
    std::string addresses;
    for (const auto& worker : workers) addresses += str(addresses.empty() ? "" : ",", worker.address);
    for (std::size_t rank = 0; rank < workers.size(); ++rank)
      workers[rank].process->send_line(str("meet ", rank, " ", addresses));
  }
  /// While the group works. All remaining workers learn which one it was.
  void lose(std::size_t rank, milliseconds after) {
    tell_all("sum 0");
    ::poll(nullptr, 0, static_cast<int>(after.count()));
    const std::string name = str("worker ", rank, " (", workers[rank].address, ")");
    workers[rank].process->end();
    const std::string address = workers[rank].address;
    workers.erase(workers.begin() + static_cast<std::ptrdiff_t>(rank));
    for (auto& worker : workers) {
      const std::string answer = worker.process->answer();
      EXPECT_TRUE(answer.starts_with(rank == 0 ? "error L117" : "error L104")) << worker.process->output();
      EXPECT_TRUE(contains(answer, name)) << answer;
    }
    workers.push_back({address});
  }

  std::vector<Worker> workers;

 private:
  const Watchdog watchdog_{seconds(600), "a test of generations"};
};

/// The remaining workers keep their processes and move up, so that the next chief may be a different one. The new
/// worker connects to the next chief while that one may still be leaving the failed group.
TEST_F(Generations, AGroupThatLosesAWorkerMeetsAgainWithANewOne) {
  const int rounds = std::getenv("LOCKSTEP_TEST_LONG") != nullptr ? 200 : 20;
  std::mt19937 random(34);
  tell_to_meet();
  expect_ok();
  for (int round = 0; round < rounds && !HasFailure(); ++round) {
    SCOPED_TRACE(str("round ", round));
    lose(random() % 3, milliseconds(random() % 40));
    tell_to_meet();
    expect_ok();
    tell_all("sum 5");
    expect_ok();
  }
  tell_all("part");
  expect_ok();
}

}  // namespace
}  // namespace lockstep
