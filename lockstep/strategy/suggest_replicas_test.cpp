#include "lockstep/strategy/suggest_replicas.h"

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/rand.h>
#include <gtest/gtest.h>

#include <chrono>
#include <cstdlib>
#include <thread>

#include "lockstep/base/error.h"
#include "lockstep/base/remembered_replicas.h"
#include "lockstep/strategy/mirrored_strategy.h"
#include "tests/support/logged_lines.h"
#include "tests/support/same_bits.h"
#include "tests/support/temporary_folder.h"

namespace lockstep {
namespace {

/// Waits for the rows of a replica, so that the time of a step is known on any machine.
std::function<void()> step_that_waits(MirroredStrategy& strategy) {
  const auto rows = strategy.values_from_function([](ValueContext its) {
    return at::ones({12 / its.num_replicas_in_sync, 2});
  });
  return [&strategy, rows] {
    const auto wait = [](const at::Tensor& mine) {
      std::this_thread::sleep_for(std::chrono::milliseconds(mine.size(0)));
      static_cast<void>(at::rand({2}));
    };
    strategy.run(wait, rows);
  };
}

TEST(SuggestReplicas, MeasuresStepsOfThisProcess) {
  const auto suggestion = suggest_replicas(step_that_waits, {.replicas = {1, 3}, .seconds = 0.1});
  EXPECT_EQ(suggestion.replicas, 3) << suggestion;
  ASSERT_EQ(suggestion.measured.size(), 2u);
  EXPECT_EQ(suggestion.measured[1].rows, 12);
  EXPECT_EQ(suggestion.measured[1].rounds.size(), 3u);
  EXPECT_GE(suggestion.measured[0].rounds[0], 0.012);
}

TEST(SuggestReplicas, LeavesTheRandomNumbersAsTheyWere) {
  const auto generator = at::detail::getDefaultCPUGenerator();
  const at::Tensor before = generator.get_state();
  suggest_replicas(step_that_waits, {.replicas = {1, 2}, .seconds = 0.01});
  EXPECT_TRUE(same_bits(generator.get_state(), before));
}

TEST(SuggestReplicas, RefusesOptionsThatMakeNoSense) {
  EXPECT_THROW(suggest_replicas(step_that_waits, {.seconds = 0}), InvalidArgument);
  EXPECT_THROW(suggest_replicas(step_that_waits, {.replicas = {0}}), InvalidArgument);
  EXPECT_THROW(best_cpus({.otherwise = 0}), InvalidArgument);
}

TEST(BestCpus, AreThoseRememberedAndLogged) {
  const TemporaryFolder cache;
  ::setenv("XDG_CACHE_HOME", cache.path().c_str(), 1);
  const LoggedLines lines;
  EXPECT_EQ(best_cpus({.name = "net", .otherwise = 2}), cpus(2));
  remember_replicas(key_here("net"), 4);
  EXPECT_EQ(best_cpus({.name = "net", .otherwise = 2}), cpus(4));
  EXPECT_EQ(best_cpus({.name = "another net"}), cpus(1));
  ::unsetenv("XDG_CACHE_HOME");
  ASSERT_EQ(lines.lines().size(), 3u);
  EXPECT_NE(lines.lines()[0].find("2 replicas on CPUs: none is remembered for net"), std::string::npos);
  EXPECT_NE(lines.lines()[1].find("4 replicas on CPUs: remembered for net"), std::string::npos);
}

}  // namespace
}  // namespace lockstep
