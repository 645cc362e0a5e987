#include "lockstep/strategy/detail/strategy_local.h"

#include <memory>

#include "lockstep/strategy/detail/run_notes.h"
#include "lockstep/strategy/mirrored_strategy.h"
#include "tests/support/errors.h"
#include "tests/support/replicas.h"
#include "tests/support/run_test.h"

// What users of strategies keep with a strategy or a run.
namespace lockstep {

struct CallsOfTest {
  int count = 0;
};
struct SharedOfTest {
  std::shared_ptr<int> held;
};

namespace {

class LocalTest : public RunTest {};
INSTANTIATE_TEST_SUITE_P(Replicas, LocalTest, testing::Values(1, 3));

int count_call() { return ++detail::run_local<CallsOfTest>()->count; }

TEST_P(LocalTest, WhatBelongsToARunIsNewInEachAndOfOneReplica) {
  EXPECT_EQ(detail::run_local<CallsOfTest>(), nullptr);
  for (int run = 0; run < 3; ++run) {
    const auto counts = strategy.run([&] {
      for (int call = 0; call <= get_replica_context().replica_id_in_sync_group(); ++call) count_call();
      return detail::run_local<CallsOfTest>()->count;
    });
    for (int k = 0; k < replicas; ++k) EXPECT_EQ(counts[static_cast<std::size_t>(k)], k + 1);
  }
  EXPECT_EQ(detail::run_local<CallsOfTest>(), nullptr);
}

TEST_P(LocalTest, WhatBelongsToARunIsApartFromThatOfARunInsideIt) {
  const auto counts = strategy.run([&] {
    count_call();
    get_replica_context().merge_call([](Strategy& own) {
      EXPECT_EQ(detail::run_local<CallsOfTest>(), nullptr);
      const auto inner = own.run([] { return count_call(); });
      for (const int count : inner) EXPECT_EQ(count, 1);
    });
    return count_call();
  });
  for (const int count : counts) EXPECT_EQ(count, 2);
}

TEST(StrategyLocal, IsApartForEachStrategyAndEndsWithIt) {
  const auto held = std::make_shared<int>(5);
  MirroredStrategy other(MirroredOptions{.devices = cpus(1)});
  {
    MirroredStrategy strategy(MirroredOptions{.devices = cpus(2)});
    EXPECT_EQ(detail::find_strategy_local<SharedOfTest>(strategy), nullptr);
    detail::strategy_local<SharedOfTest>(strategy).held = held;
    EXPECT_EQ(detail::find_strategy_local<SharedOfTest>(strategy)->held, held);
    EXPECT_EQ(detail::find_strategy_local<SharedOfTest>(other), nullptr);
    const auto seen = strategy.run([&] { return *detail::strategy_local<SharedOfTest>(get_strategy()).held; });
    EXPECT_EQ(seen[1], 5);
    EXPECT_EQ(held.use_count(), 2);
  }
  EXPECT_EQ(held.use_count(), 1);
}

}  // namespace
}  // namespace lockstep
