#include <ATen/Parallel.h>
#include <ATen/autocast_mode.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/full.h>
#include <ATen/ops/matmul.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/zeros.h>
#include <c10/core/InferenceMode.h>
#include <gtest/gtest.h>

#include <atomic>
#include <future>
#include <map>
#include <memory>
#include <stdexcept>
#include <thread>

#include "lockstep/strategy/default_strategy.h"
#include "lockstep/strategy/test_support.h"

// Running: who runs where, what replicas inherit, how they meet, and what happens when they fail.
namespace lockstep {
namespace {

using namespace std::chrono_literals;

constexpr auto kLimit = 30s;  // of every wait; a sanitizer on a busy machine is slow

/// Waits until `count` threads have come here; false if they do not come in time.
class Rendezvous {
 public:
  explicit Rendezvous(int count) : missing_(count) {}
  bool arrive() {
    --missing_;
    for (const auto end = std::chrono::steady_clock::now() + kLimit; missing_ > 0;) {
      if (std::chrono::steady_clock::now() > end) return false;
      std::this_thread::yield();
    }
    return true;
  }

 private:
  std::atomic<int> missing_;
};

class RunTest : public testing::TestWithParam<int> {
 protected:
  const Watchdog watchdog{120s, testing::UnitTest::GetInstance()->current_test_info()->name()};
  const int replicas = GetParam();
  MirroredStrategy strategy{on_cpus(replicas)};

  /// Whether the strategy still does what it is for.
  void expect_usable() {
    const auto sums = strategy.run([] { return get_replica_context().all_reduce(ReduceOp::Sum, at::ones({2})); });
    for (const auto& sum : sums) EXPECT_TRUE(same_bits(sum, at::full({2}, replicas, at::kFloat)));
  }
};

INSTANTIATE_TEST_SUITE_P(Replicas, RunTest, testing::Values(1, 2, 3, 4, 7));

// ---------------------------------------------------------------------------------------------------------------------
// Contexts

/// One letter per context: default, cross-replica, replica, update.
char context_here() {
  if (in_cross_replica_context() == in_replica_context()) return '?';
  if (!has_strategy()) return in_replica_context() ? 'd' : '?';
  if (in_replica_context()) return current_component() >= 0 ? 'r' : '?';
  return current_component() >= 0 ? 'u' : 'x';
}

TEST_P(RunTest, EveryContextIsEnteredAndLeft) {
  EXPECT_EQ(context_here(), 'd');
  EXPECT_TRUE(get_strategy().is_default());
  {
    const auto outer = strategy.scope();
    EXPECT_EQ(context_here(), 'x');
    EXPECT_EQ(&get_strategy(), &strategy);
    const auto inner = strategy.scope();
    const Variable v(at::zeros({}));
    EXPECT_EQ(context_here(), 'x');
    strategy.run([&] {
      EXPECT_EQ(context_here(), 'r');
      EXPECT_EQ(&get_strategy(), &strategy);
      get_replica_context().merge_call([&](Strategy&) {
        EXPECT_EQ(context_here(), 'x');
        strategy.extended().update(v, [](const at::Tensor&) { EXPECT_EQ(context_here(), 'u'); });
        EXPECT_EQ(context_here(), 'x');
        strategy.run([] { EXPECT_EQ(context_here(), 'r'); });
        EXPECT_EQ(context_here(), 'x');
      });
      EXPECT_EQ(context_here(), 'r');
    });
    EXPECT_EQ(context_here(), 'x');
  }
  EXPECT_EQ(context_here(), 'd');
}

TEST_P(RunTest, ContextsAreLeftWhenFunctionsThrow) {
  EXPECT_THROW(strategy.run([] { throw std::runtime_error("no"); }), std::runtime_error);
  EXPECT_EQ(context_here(), 'd');
  EXPECT_THROW(strategy.run([] {
    get_replica_context().merge_call([](Strategy& s) { s.run([] { throw std::runtime_error("no"); }); });
  }),
               std::runtime_error);
  EXPECT_EQ(context_here(), 'd');
  expect_usable();
}

TEST(Contexts, ScopesOfOneStrategyMayEndInAnyOrder) {
  MirroredStrategy strategy(on_cpus(2));
  auto first = std::make_unique<Scope>(strategy);
  auto second = std::make_unique<Scope>(strategy);
  first.reset();
  EXPECT_EQ(&get_strategy(), &strategy);
  EXPECT_TRUE(in_cross_replica_context());
  second.reset();
  EXPECT_FALSE(has_strategy());
  EXPECT_TRUE(in_replica_context());
}

TEST(Contexts, AThreadStartedInsideAScopeOrReplicaBeginsInTheDefaultContext) {
  MirroredStrategy strategy(on_cpus(2));
  const auto scope = strategy.scope();
  EXPECT_EQ(std::async(std::launch::async, context_here).get(), 'd');
  strategy.run([] { EXPECT_EQ(std::async(std::launch::async, context_here).get(), 'd'); });
}

TEST(Contexts, TheDefaultContextIsOneReplica) {
  ReplicaContext& replica = get_replica_context();
  EXPECT_EQ(replica.replica_id_in_sync_group(), 0);
  EXPECT_EQ(replica.num_replicas_in_sync(), 1);
  EXPECT_TRUE(same_bits(replica.all_reduce(ReduceOp::Sum, at::ones({3})), at::ones({3})));
  EXPECT_TRUE(same_bits(replica.all_gather(at::ones({3}), 0), at::ones({3})));
  const int doubled = replica.merge_call(
      [](Strategy& strategy, const PerReplica<int>& x) {
        EXPECT_TRUE(strategy.is_default());
        EXPECT_TRUE(in_cross_replica_context());
        return 2 * x[0];
      },
      21);
  EXPECT_EQ(doubled, 42);
}

// ---------------------------------------------------------------------------------------------------------------------
// Where replicas run

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

TEST_P(RunTest, EveryReplicaUsesTheThreadsOfItsStrategy) {
  const auto threads_in_replicas = [&] { return strategy.run([] { return at::get_num_threads(); }).values(); };
  const std::vector<int> wanted(static_cast<std::size_t>(replicas), strategy.intra_op_threads());
  EXPECT_EQ(threads_in_replicas(), wanted);
  MirroredStrategy later({.devices = cpus(1), .intra_op_threads = strategy.intra_op_threads() + 1});
  EXPECT_EQ(threads_in_replicas(), wanted) << "another strategy was made since";
  EXPECT_EQ(later.run([] { return at::get_num_threads(); })[0], strategy.intra_op_threads() + 1);
  EXPECT_EQ(std::async(std::launch::async, threads_in_replicas).get(), wanted) << "run from another thread";
}

TEST(Threads, TheCallersNumberComesBackInWhateverOrderStrategiesEnd) {
  const int before = at::get_num_threads();
  auto strategy = std::make_unique<MirroredStrategy>(MirroredOptions{.devices = cpus(2), .intra_op_threads = before + 1});
  strategy = std::make_unique<MirroredStrategy>(MirroredOptions{.devices = cpus(2), .intra_op_threads = before + 2});
  EXPECT_EQ(strategy->run([] { return at::get_num_threads(); }).values(), std::vector(2, before + 2));
  strategy.reset();
  EXPECT_EQ(at::get_num_threads(), before);
}

TEST(Threads, StrategiesOnDifferentThreadsDoNotDisturbEachOther) {
  const Watchdog watchdog(60s, "two strategies at the same time");
  const auto train = [](int replicas) {
    MirroredStrategy strategy(on_cpus(replicas));
    for (int step = 0; step < 200; ++step) {
      const auto ids = strategy.run([&] { return get_replica_context().all_reduce(ReduceOp::Sum, at::ones({})).item<float>(); });
      for (const float sum : ids) EXPECT_EQ(sum, static_cast<float>(replicas));
    }
  };
  auto other = std::async(std::launch::async, train, 3);
  train(2);
  other.get();
}

TEST(Threads, AStrategyMayBeMadeHereAndRunThere) {
  MirroredStrategy strategy(on_cpus(2));
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
  MirroredStrategy strategy(on_cpus(2));
  const auto ids = strategy.run([&] {
    if (my_id() == 0) {
      const Seen seen = std::async(std::launch::async, [&] { return error_of([&] { strategy.run([] {}); }); }).get();
      EXPECT_EQ(seen.code, Code::FailedPrecondition);
      EXPECT_EQ(seen.number, errors::kConcurrentRun);
    }
    return get_replica_context().all_reduce(ReduceOp::Sum, at::ones({})).item<float>();
  });
  EXPECT_EQ(ids.values(), (std::vector{2.0f, 2.0f}));
  EXPECT_FALSE(strategy.last_failure());
}

// ---------------------------------------------------------------------------------------------------------------------
// What replicas inherit from the caller

TEST_P(RunTest, GradModeIsTheCallers) {
  const auto modes = [&] { return strategy.run([] { return at::GradMode::is_enabled(); }); };
  for (const bool enabled : modes()) EXPECT_TRUE(enabled);
  {
    const at::NoGradGuard no_grad;
    for (const bool enabled : modes()) EXPECT_FALSE(enabled);
  }
  for (const bool enabled : modes()) EXPECT_TRUE(enabled);
}

TEST_P(RunTest, InferenceModeIsTheCallers) {
  const auto modes = [&] { return strategy.run([] { return at::ones({}).is_inference(); }); };
  {
    const c10::InferenceMode inference;
    for (const bool on : modes()) EXPECT_TRUE(on);
    const auto sums = strategy.run([] { return get_replica_context().all_reduce(ReduceOp::Sum, at::ones({3})); });
    for (const auto& sum : sums) EXPECT_EQ(sum.sum().item<float>(), 3.0f * static_cast<float>(replicas));
  }
  for (const bool on : modes()) EXPECT_FALSE(on);
}

/// Switches autocast on for the CPU on this thread.
class Autocast {
 public:
  explicit Autocast(at::ScalarType type) : outer_(at::autocast::get_autocast_dtype(at::kCPU)) {
    at::autocast::set_autocast_dtype(at::kCPU, type);
    at::autocast::set_autocast_enabled(at::kCPU, true);
  }
  ~Autocast() {
    at::autocast::set_autocast_enabled(at::kCPU, false);
    at::autocast::set_autocast_dtype(at::kCPU, outer_);
    at::autocast::clear_cache();
  }
  Autocast(const Autocast&) = delete;
  Autocast& operator=(const Autocast&) = delete;

 private:
  at::ScalarType outer_;
};

TEST_P(RunTest, AutocastAndItsTypeAreTheCallers) {
  const auto types = [&] {
    return strategy.run([] { return at::matmul(at::ones({2, 2}), at::ones({2, 2})).scalar_type(); });
  };
  for (const auto type : {at::kBFloat16, at::kHalf}) {
    const Autocast autocast(type);
    for (const auto seen : types()) EXPECT_EQ(seen, type);
  }
  for (const auto seen : types()) EXPECT_EQ(seen, at::kFloat);
}

TEST_P(RunTest, WeightsThatAutocastRemembersDoNotOutliveARunEvenOneThatFails) {
  const Autocast autocast(at::kBFloat16);
  at::Tensor weight = at::ones({2, 2}).requires_grad_();
  const auto product = [&] { return at::matmul(weight, at::ones({2, 2}))[0][0].item<float>(); };
  EXPECT_THROW(strategy.run([&] {
    product();
    throw std::runtime_error("after the cast was remembered");
  }),
               std::runtime_error);
  {
    const at::NoGradGuard no_grad;
    weight.fill_(5);
  }
  for (const float seen : strategy.run(product)) EXPECT_EQ(seen, 10);
}

TEST_P(RunTest, BackwardRunsOnTheReplicasOwnThread) {
  strategy.run([] {
    at::Tensor x = at::ones({2}).requires_grad_();
    std::thread::id seen;
    int replica = -1;
    x.register_hook([&](const at::Tensor&) {
      seen = std::this_thread::get_id();
      replica = my_id();
    });
    x.mul(2).sum().backward();
    EXPECT_EQ(seen, std::this_thread::get_id());
    EXPECT_EQ(replica, my_id());
  });
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
      return std::tuple(s.values_from_function([](const ValueContext& c) { return c.replica_id_in_sync_group; }), shared, true);
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
      return get_replica_context().merge_call([](Strategy&, const PerReplica<int>& ids) { return at::full({}, ids[0], at::kInt); },
                                              my_id() + 7);
    });
    for (const auto& result : results) EXPECT_EQ(result.item<int>(), 7);
  }
}

TEST_P(RunTest, ReplicasThatCatchAFailedCollectiveGoOnTogether) {
  if (replicas == 1) return;  // one replica always agrees with itself
  for (int round = 0; round < 50; ++round) {
    const auto results = strategy.run([&] {
      auto& replica = get_replica_context();
      const Seen seen = error_of([&] { replica.all_reduce(ReduceOp::Sum, at::ones({my_id() == 0 ? 2 : 3})); });
      EXPECT_EQ(seen.number, errors::kShape);
      return replica.all_reduce(ReduceOp::Sum, at::ones({})).item<float>();
    });
    for (const float result : results) EXPECT_EQ(result, static_cast<float>(replicas));
  }
}

// ---------------------------------------------------------------------------------------------------------------------
// Failures

struct FailureCase {
  const char* name;
  std::function<void()> fail;
  const char* fragment;  ///< of what last_failure() says
};

const FailureCase kFailures[] = {
    {"Standard", [] { throw std::out_of_range("index 7"); }, "index 7"},
    {"Ours", [] { throw DataLoss(errors::kInternal, {.what = "a bad file"}); }, "a bad file"},
    {"LibTorchs", [] { at::ones({2}).add(at::ones({3})); }, "must match the size"},
    {"Unknown", [] { throw 42; }, "unknown"},  // NOLINT(hicpp-exception-baseclass)
};

class FailureTest : public testing::TestWithParam<std::tuple<int, int>> {};
INSTANTIATE_TEST_SUITE_P(ReplicasAndKinds, FailureTest, testing::Combine(testing::Values(1, 2, 5), testing::Range(0, 4)));

TEST_P(FailureTest, OfAnyReplicaStopsAllAndArrivesWithItsOwnType) {
  const auto [replicas, kind] = GetParam();
  const FailureCase& failure = kFailures[kind];
  const Watchdog watchdog(60s, failure.name);
  const LoggedLines quiet;
  MirroredStrategy strategy(on_cpus(replicas));
  for (int culprit = 0; culprit < replicas; ++culprit) {
    std::atomic<int> unwound = 0;
    const auto run = [&] {
      strategy.run([&] {
        struct Leaving {
          std::atomic<int>& count;
          ~Leaving() { ++count; }
        } leaving{unwound};
        if (my_id() == culprit) failure.fail();
        get_replica_context().all_reduce(ReduceOp::Sum, at::ones({}));
        if (get_replica_context().num_replicas_in_sync() > 1) ADD_FAILURE() << "a meeting without replica " << culprit;
      });
    };
    switch (kind) {
      case 0: EXPECT_THROW(run(), std::out_of_range); break;
      case 1: EXPECT_THROW(run(), DataLoss); break;
      case 2: EXPECT_THROW(run(), c10::Error); break;
      default: EXPECT_THROW(run(), int); break;
    }
    EXPECT_EQ(unwound, replicas);
    ASSERT_TRUE(strategy.last_failure());
    EXPECT_EQ(strategy.last_failure()->replica, culprit);
    EXPECT_NE(strategy.last_failure()->what.find(failure.fragment), std::string::npos) << strategy.last_failure()->what;
    EXPECT_EQ(strategy.run(my_id).size(), static_cast<std::size_t>(replicas));
  }
}

TEST_P(RunTest, AnErrorSaysOnWhichReplicaItHappened) {
  for (int culprit = 0; culprit < replicas; ++culprit) {
    const std::string who = "on replica " + std::to_string(culprit);
    const Seen seen = error_of([&] {
      strategy.run([&] {
        if (my_id() == culprit) throw InvalidArgument(errors::kShape, {.what = "wrong"});
      });
    });
    EXPECT_NE(seen.parts.where.find(who), std::string::npos) << seen.text;
    try {
      strategy.run([&] {
        if (my_id() == culprit) TORCH_CHECK(false, "wrong");
      });
      FAIL() << "nothing was thrown";
    } catch (const c10::Error& e) {
      EXPECT_NE(std::string(e.what_without_backtrace()).find(who), std::string::npos) << e.what_without_backtrace();
    }
  }
}

TEST_P(RunTest, OfSeveralFailuresTheLowestReplicasIsThrown) {
  const LoggedLines quiet;
  Rendezvous everybody(replicas);
  try {
    strategy.run([&] {
      EXPECT_TRUE(everybody.arrive());
      throw std::runtime_error(std::to_string(my_id()));
    });
    FAIL() << "nothing was thrown";
  } catch (const std::runtime_error& e) {
    EXPECT_STREQ(e.what(), "0");
  }
}

TEST_P(RunTest, AReplicaThatSwallowsEverythingDoesNotHideTheFailureOfAnother) {
  const LoggedLines quiet;
  EXPECT_THROW(strategy.run([&] {
    if (my_id() == replicas - 1) throw std::runtime_error("the cause");
    for (int attempt = 0; attempt < 3; ++attempt) {
      try {
        get_replica_context().all_reduce(ReduceOp::Sum, at::ones({}));
      } catch (...) {
      }
    }
  }),
               std::runtime_error);
  expect_usable();
}

TEST_P(RunTest, AFailureInsideBackwardArrivesAsItself) {
  const LoggedLines quiet;
  EXPECT_THROW(strategy.run([&] {
    at::Tensor x = at::ones({2}).requires_grad_();
    x.register_hook([&](const at::Tensor&) {
      if (my_id() == replicas - 1) throw std::length_error("in a hook");
    });
    get_replica_context().all_reduce(ReduceOp::Sum, x.mul(2)).sum().backward();
    get_replica_context().all_reduce(ReduceOp::Sum, at::ones({}));
  }),
               std::length_error);
  expect_usable();
}

TEST_P(RunTest, AResultKeepsNothingOfTheStrategyAlive) {
  c10::weak_intrusive_ptr<c10::TensorImpl> watched(at::ones({}).getIntrusivePtr());
  {
    const auto results = strategy.run([] { return at::ones({5}); });
    watched = c10::weak_intrusive_ptr<c10::TensorImpl>(results[0].getIntrusivePtr());
    EXPECT_FALSE(watched.expired());
  }
  EXPECT_TRUE(watched.expired());
}

}  // namespace
}  // namespace lockstep
