// Two workers as threads of one process, over real connections.

#include "lockstep/comm/workers/cluster_workers.h"

#include <gtest/gtest.h>

#include <array>
#include <chrono>
#include <thread>

#include "tests/support/errors.h"
#include "tests/support/logged_lines.h"
#include "tests/support/processes.h"
#include "tests/support/watchdog.h"

namespace lockstep {
namespace {

using namespace std::chrono_literals;

class TwoWorkers : public ::testing::Test {
 protected:
  TwoWorkers() {
    on_both([this](int rank) {
      members[rank] = std::make_shared<Membership>(options(rank));
      strategies[rank] = members[rank]->add_strategy(options(rank));
    });
  }
  ~TwoWorkers() override {
    on_both([this](int rank) {
      strategies[rank].reset();
      members[rank].reset();
    });
  }

  static void on_both(const std::function<void(int rank)>& action) {
    std::jthread second([&] { action(1); });
    action(0);
  }

  WorkerGroupOptions options(int rank) const {
    return {.cluster = describe_cluster(ClusterSpec{{"worker", addresses_}}, {"worker", rank}), .join_seconds = 20};
  }

  std::array<std::shared_ptr<Membership>, 2> members;
  std::array<std::shared_ptr<WorkerGroup>, 2> strategies;

 private:
  const std::vector<std::string> addresses_ = free_addresses(2);
  const Watchdog watchdog_{60s, "a test of two workers"};
  const LogSilence silence_;
};

TEST_F(TwoWorkers, AStrategyMayEndWhileAnotherOneWaitsToBeMadeWithIt) {
  std::shared_ptr<WorkerGroup> second;
  {
    std::jthread maker([&] { second = members[0]->add_strategy(options(0)); });
    std::this_thread::sleep_for(200ms);  // it waits for the other worker to make its own
    strategies[0].reset();
    const auto theirs = members[1]->add_strategy(options(1));
    maker.join();
    on_both([&](int rank) { (rank == 0 ? second : theirs)->barrier("both have it", Deadline::after(10s)); });
  }
}

TEST_F(TwoWorkers, WithDifferentFactsAreRefusedWithBoth) {
  on_both([this](int rank) {
    WorkerGroupOptions different = options(rank);
    different.replicas = 1 + rank;
    different.facts = {str("replicas of a worker: ", 1 + rank)};
    const SeenError seen = error_of([&] { members[rank]->add_strategy(different); });
    EXPECT_EQ(seen.number, errors::kDifferentPrograms);
    EXPECT_EQ(seen.parts.seen, "worker 0 has \"replicas of a worker: 1\", worker 1 has \"replicas of a worker: 2\"");
  });
}

TEST_F(TwoWorkers, NobodyWaitsForTheCauseOfALossOnceTheSessionIsOver) {
  for (const int rank : {1, 0}) members[rank]->coordinator->leave(Deadline::after(10s));
  strategies[1].reset();
  const auto begin = Deadline::Clock::now();
  EXPECT_EQ(error_of([this] { strategies[0]->barrier("alone", Deadline::after(10s)); }).number, errors::kPeerLost);
  EXPECT_LT(Deadline::Clock::now() - begin, 2s);
}

}  // namespace
}  // namespace lockstep
