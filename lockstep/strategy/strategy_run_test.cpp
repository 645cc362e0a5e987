#include <ATen/Parallel.h>
#include <ATen/ops/zeros.h>

#include <functional>
#include <future>
#include <map>
#include <memory>
#include <optional>

#include "tests/support/errors.h"
#include "tests/support/replicas.h"
#include "tests/support/run_test.h"
#include "tests/support/watchdog.h"

// Who runs where, and how replicas meet.
namespace lockstep {
namespace {

using namespace std::chrono_literals;

INSTANTIATE_TEST_SUITE_P(Replicas, RunTest, testing::Values(1, 2, 3, 4, 7));

TEST_P(RunTest, ReplicasRunAtTheSameTimeOnThreadsThatLast) {
  const auto threads_of_a_run = [&] {
    Rendezvous everybody(replicas);
    return strategy.run([&] {
      EXPECT_TRUE(everybody.arrive()) << "replicas do not run at the same time";
      return std::this_thread::get_id();
    });
  };
  const auto first = threads_of_a_run();
  EXPECT_EQ(first[0], std::this_thread::get_id());
  for (std::size_t k = 0; k < first.size(); ++k) {
    for (std::size_t j = 0; j < k; ++j) EXPECT_NE(first[j], first[k]);
  }
  for (int round = 0; round < 20; ++round) EXPECT_EQ(threads_of_a_run().values(), first.values());
}

TEST_P(RunTest, ArgumentsAreSplitAndResultsCollectedToAnyDepth) {
  const auto numbers = strategy.values_from_function([](const ValueContext& c) { return c.replica_id_in_sync_group; });
  const std::map<std::string, PerReplica<int>> named{{"a", numbers}};
  auto [sum, text, flag] = strategy.run(
      [](int mine, const std::map<std::string, int>& parts, const std::vector<int>& shared) {
        return std::tuple(mine + parts.at("a") + shared[0], std::to_string(mine), mine == 0);
      },
      numbers, named, std::vector{100});
  for (int k = 0; k < replicas; ++k) {
    const auto i = static_cast<std::size_t>(k);
    EXPECT_EQ(sum[i], 100 + 2 * k);
    EXPECT_EQ(text[i], std::to_string(k));
    EXPECT_EQ(flag[i], k == 0);
  }
}

TEST_P(RunTest, TensorsThatAFunctionMakesAreOnTheReplicasDevices) {
  using Made = std::tuple<at::Tensor, std::vector<at::Tensor>, at::Tensor, at::Tensor, std::unique_ptr<int>>;
  const at::Tensor meta = at::zeros({2}, at::kMeta);
  const auto made = strategy.values_from_function([&](const ValueContext& its) {
    std::vector<at::Tensor> more{at::zeros({3}, at::kCPU)};
    return Made(at::zeros({2}, at::kCPU), std::move(more), at::Tensor(), meta,
                std::make_unique<int>(its.replica_id_in_sync_group));
  });
  for (int k = 0; k < replicas; ++k) {
    const auto& [tensor, more, none, without_memory, number] = made[static_cast<std::size_t>(k)];
    EXPECT_EQ(tensor.device(), test_device());
    EXPECT_EQ(more[0].device(), test_device());
    EXPECT_FALSE(none.defined());
    EXPECT_TRUE(without_memory.is_meta());
    EXPECT_EQ(*number, k);
  }
}

TEST_P(RunTest, EveryReplicaUsesTheThreadsOfItsStrategy) {
  const auto threads_in_replicas = [&] { return strategy.run([] { return at::get_num_threads(); }).values(); };
  const std::vector<int> wanted(static_cast<std::size_t>(replicas), strategy.intra_op_threads());
  EXPECT_EQ(threads_in_replicas(), wanted);
  MirroredStrategy later({.devices = cpus(1), .intra_op_threads = strategy.intra_op_threads() + 1});
  EXPECT_EQ(threads_in_replicas(), wanted) << "another strategy was made since";
  EXPECT_EQ(later.run([] { return at::get_num_threads(); })[0], strategy.intra_op_threads() + 1);
  EXPECT_EQ(std::async(std::launch::async, threads_in_replicas).get(), wanted) << "run from another thread";
}

TEST(Threads, OneReplicaUsesThoseOfAPlainProgram) {
  const int before = at::get_num_threads();
  at::set_num_threads(before + 2);
  EXPECT_EQ(MirroredStrategy({.devices = cpus(1)}).intra_op_threads(), before + 2);
  at::set_num_threads(1);
  EXPECT_EQ(MirroredStrategy({.devices = cpus(1)}).intra_op_threads(), 1);
  EXPECT_EQ(MirroredStrategy({.devices = cpus(2)}).intra_op_threads(), 1);
  at::set_num_threads(before);
  const MirroredStrategy other({.devices = cpus(2), .intra_op_threads = before + 3});
  EXPECT_EQ(MirroredStrategy({.devices = cpus(1)}).intra_op_threads(), before) << "another strategy lives";
  const auto elsewhere = [] {
    return std::async(std::launch::async, [] { return MirroredStrategy({.devices = cpus(1)}).intra_op_threads(); })
        .get();
  };
  EXPECT_EQ(elsewhere(), before) << "and set its number for threads that start later";
  at::set_num_threads(before + 5);
  const MirroredStrategy wide({.devices = cpus(1)}), as_wide({.devices = cpus(1)});
  EXPECT_EQ(wide.intra_op_threads(), before + 5);
  EXPECT_EQ(as_wide.intra_op_threads(), before + 5);
  at::set_num_threads(before);
}

TEST(Threads, TheCallersNumberComesBackInWhateverOrderStrategiesEnd) {
  const int before = at::get_num_threads();
  auto strategy =
      std::make_unique<MirroredStrategy>(MirroredOptions{.devices = cpus(2), .intra_op_threads = before + 1});
  strategy = std::make_unique<MirroredStrategy>(MirroredOptions{.devices = cpus(2), .intra_op_threads = before + 2});
  EXPECT_EQ(strategy->run([] { return at::get_num_threads(); }).values(), std::vector(2, before + 2));
  strategy.reset();
  EXPECT_EQ(at::get_num_threads(), before);
}

/// LibTorch's number of threads for the calling thread and for those that start, for one test.
class ThreadsTest : public testing::Test {
 protected:
  static constexpr int kWanted = 5, kOther = 3;

  ThreadsTest() { at::set_num_threads(kWanted); }
  ~ThreadsTest() override { at::set_num_threads(before_); }

  static std::unique_ptr<MirroredStrategy> make(std::optional<int> threads = kOther) {
    return std::make_unique<MirroredStrategy>(MirroredOptions{.devices = cpus(2), .intra_op_threads = threads});
  }
  /// What a strategy gets that is not told.
  static int planned() { return MirroredStrategy({.devices = cpus(1)}).intra_op_threads(); }
  template <class F>
  static auto elsewhere(F&& f) {
    return std::async(std::launch::async, f).get();
  }

 private:
  const Watchdog watchdog_{60s, "threads"};
  const int before_ = at::get_num_threads();
};

TEST_F(ThreadsTest, OfEqualStrategiesAreEqualWhoeverEndsThem) {
  const int first = make({})->intra_op_threads();
  for (int round = 0; round < 4; ++round) {
    auto strategy = make({});
    EXPECT_EQ(strategy->intra_op_threads(), first) << "round " << round;
    elsewhere([&] { strategy.reset(); });
  }
  for (int round = 0; round < 3; ++round) {
    auto strategy = make();
    elsewhere([&] { strategy.reset(); });
    EXPECT_EQ(elsewhere(&at::get_num_threads), kWanted) << "a thread that starts later";
    EXPECT_EQ(elsewhere(&planned), kWanted);
    EXPECT_EQ(planned(), kWanted);
    EXPECT_EQ(at::get_num_threads(), kWanted);
  }
}

TEST_F(ThreadsTest, AreTheProgramsAgainWhenTheMakerHasEnded) {
  std::unique_ptr<MirroredStrategy> strategy;
  elsewhere([&] { strategy = make(); });
  strategy.reset();
  EXPECT_EQ(at::get_num_threads(), kWanted);
  EXPECT_EQ(elsewhere(&at::get_num_threads), kWanted);
  EXPECT_EQ(planned(), kWanted);

  elsewhere([&] { strategy = make(); });
  elsewhere([&] { strategy.reset(); });  // neither the maker nor anybody who was there before
  EXPECT_EQ(elsewhere(&at::get_num_threads), kWanted);
  EXPECT_EQ(elsewhere(&planned), kWanted);
}

TEST_F(ThreadsTest, ThatTheProgramSetsInBetweenStay) {
  auto strategy = make();
  elsewhere([&] { strategy.reset(); });
  at::set_num_threads(7);
  EXPECT_EQ(planned(), 7);
  EXPECT_EQ(at::get_num_threads(), 7);

  strategy = make();
  at::set_num_threads(6);
  strategy.reset();
  EXPECT_EQ(at::get_num_threads(), 6) << "set while a strategy lived, which then ended here";

  strategy = make();
  at::set_num_threads(4);
  elsewhere([&] { strategy.reset(); });
  EXPECT_EQ(at::get_num_threads(), 4);
  EXPECT_EQ(planned(), 4);
}

TEST_F(ThreadsTest, OfTwoStrategiesComeBackWhenBothHaveEnded) {
  auto first = make(kOther), second = make(kOther + 1);
  elsewhere([&] { second.reset(); });
  EXPECT_EQ(planned(), kWanted) << "the first still lives";
  elsewhere([&] { first.reset(); });
  EXPECT_EQ(planned(), kWanted);
  EXPECT_EQ(at::get_num_threads(), kWanted);

  first = make(kOther);
  second = elsewhere([] { return make(kOther + 1); });
  first.reset();
  EXPECT_EQ(at::get_num_threads(), kWanted);
  second.reset();
  EXPECT_EQ(at::get_num_threads(), kWanted);
  EXPECT_EQ(elsewhere(&at::get_num_threads), kWanted);
}

TEST_F(ThreadsTest, OfAThreadThatStartedWhileAStrategyLivedAreNotTakenForTheProgramsWish) {
  auto strategy = make();
  std::promise<int> number;
  std::promise<void> strategy_ended;
  auto late = std::async(std::launch::async, [&] {
    number.set_value(at::get_num_threads());
    strategy_ended.get_future().wait();
    return planned();
  });
  EXPECT_EQ(number.get_future().get(), kOther);
  strategy.reset();
  strategy_ended.set_value();
  EXPECT_EQ(late.get(), kWanted);
}

TEST(Threads, StrategiesOnDifferentThreadsDoNotDisturbEachOther) {
  const Watchdog watchdog(60s, "two strategies at the same time");
  const auto train = [](int replicas) {
    MirroredStrategy strategy(on_devices(replicas));
    for (int step = 0; step < 200; ++step) {
      const auto ids =
          strategy.run([&] { return get_replica_context().all_reduce(ReduceOp::Sum, at::ones({})).item<float>(); });
      for (const float sum : ids) EXPECT_EQ(sum, static_cast<float>(replicas));
    }
  };
  auto other = std::async(std::launch::async, train, 3);
  train(2);
  other.get();
}

TEST(Threads, AStrategyMayBeMadeHereAndRunThere) {
  MirroredStrategy strategy(on_devices(2));
  std::async(std::launch::async, [&] {
    const auto scope = strategy.scope();
    Variable v(at::zeros({}), {.aggregation = Aggregation::Sum});
    strategy.run([&] { v.assign_add(at::ones({})); });
    EXPECT_EQ(v.read().item<float>(), 2);
  }).get();
  EXPECT_EQ(strategy.run(my_id).values(), (std::vector{0, 1}));
}

TEST(Threads, ASecondRunAtTheSameTimeIsRefusedAndTheFirstGoesOn) {
  const Watchdog watchdog(60s, "a second run");
  MirroredStrategy strategy(on_devices(2));
  const auto ids = strategy.run([&] {
    if (my_id() == 0) {
      const SeenError seen =
          std::async(std::launch::async, [&] { return error_of([&] { strategy.run([] {}); }); }).get();
      EXPECT_EQ(seen.code, Code::FailedPrecondition);
      EXPECT_EQ(seen.number, errors::kConcurrentRun);
    }
    return get_replica_context().all_reduce(ReduceOp::Sum, at::ones({})).item<float>();
  });
  EXPECT_EQ(ids.values(), (std::vector{2.0f, 2.0f}));
  EXPECT_FALSE(strategy.last_failure());
}
// ---------------------------------------------------------------------------------------------------------------------
// Merge points

TEST_P(RunTest, AMergeFunctionRunsOnceOnTheCallersThreadWithEverybodysArguments) {
  const auto caller = std::this_thread::get_id();
  std::atomic<int> calls = 0;
  const auto results = strategy.run([&] {
    return get_replica_context().merge_call(
        [&](Strategy& s, const PerReplica<int>& ids, const PerReplica<std::string>& names) {
          ++calls;
          EXPECT_EQ(std::this_thread::get_id(), caller);
          EXPECT_EQ(&s, &strategy);
          for (std::size_t k = 0; k < ids.size(); ++k) EXPECT_EQ(names[k], "replica " + std::to_string(ids[k]));
          return ids.map([](int id) { return id * id; });
        },
        my_id(), "replica " + std::to_string(my_id()));
  });
  EXPECT_EQ(calls, 1);
  for (std::size_t k = 0; k < results.size(); ++k) EXPECT_EQ(results[k], static_cast<int>(k * k));
}

TEST_P(RunTest, OfAMergeResultDistributedPartsAreSplitAndOthersShared) {
  const at::Tensor shared = at::ones({2});
  const auto results = strategy.run([&] {
    auto [own, same, flag] = get_replica_context().merge_call([&](Strategy& s) {
      return std::tuple(s.values_from_function([](const ValueContext& c) { return c.replica_id_in_sync_group; }),
                        shared, true);
    });
    EXPECT_TRUE(flag);
    EXPECT_TRUE(same.is_same(shared));
    return own;
  });
  for (std::size_t k = 0; k < results.size(); ++k) EXPECT_EQ(results[k], static_cast<int>(k));
}

TEST_P(RunTest, MergeFunctionsMayRunAgainToAnyDepth) {
  const std::function<int(int)> dive = [&](int depth) -> int {
    if (depth == 0) return my_id();
    return get_replica_context().merge_call(
        [&](Strategy& s, const PerReplica<int>& ids) {
          EXPECT_EQ(ids.size(), static_cast<std::size_t>(replicas));
          return s.run([&] { return dive(depth - 1); });
        },
        my_id());
  };
  for (int round = 0; round < 10; ++round) {
    const auto ids = strategy.run([&] { return dive(4); });
    for (std::size_t k = 0; k < ids.size(); ++k) EXPECT_EQ(ids[k], static_cast<int>(k));
  }
}

TEST_P(RunTest, AnExceptionOfAMergeFunctionArrivesAsItself) {
  struct Special : std::runtime_error {
    using std::runtime_error::runtime_error;
    int payload = 42;
  };
  try {
    strategy.run([] { get_replica_context().merge_call([](Strategy&) { throw Special("in the middle"); }); });
    FAIL() << "nothing was thrown";
  } catch (const Special& e) {
    EXPECT_EQ(e.payload, 42);
  }
  ASSERT_TRUE(strategy.last_failure());
  EXPECT_EQ(strategy.last_failure()->replica, 0);
  EXPECT_EQ(strategy.last_failure()->what, "in the middle");
  expect_usable();
}

TEST_P(RunTest, ReplicasThatCatchAFailedMergeCallGoOnTogether) {
  for (int round = 0; round < 50; ++round) {
    const auto results = strategy.run([&] {
      bool caught = false;
      try {
        get_replica_context().merge_call([](Strategy&) -> at::Tensor { throw std::runtime_error("not this time"); });
      } catch (const std::exception&) {
        caught = true;
      }
      EXPECT_TRUE(caught) << "replica " << my_id();
      return get_replica_context().merge_call(
          [](Strategy&, const PerReplica<int>& ids) { return at::full({}, ids[0], at::kInt); }, my_id() + 7);
    });
    for (const auto& result : results) EXPECT_EQ(result.item<int>(), 7);
  }
}

TEST_P(RunTest, ReplicasThatCatchAFailedCollectiveGoOnTogether) {
  if (replicas == 1) return;  // one replica always agrees with itself
  for (int round = 0; round < 50; ++round) {
    const auto results = strategy.run([&] {
      auto& replica = get_replica_context();
      const SeenError seen = error_of([&] { replica.all_reduce(ReduceOp::Sum, at::ones({my_id() == 0 ? 2 : 3})); });
      EXPECT_EQ(seen.number, errors::kShape);
      return replica.all_reduce(ReduceOp::Sum, at::ones({})).item<float>();
    });
    for (const float result : results) EXPECT_EQ(result, static_cast<float>(replicas));
  }
}
}  // namespace
}  // namespace lockstep
