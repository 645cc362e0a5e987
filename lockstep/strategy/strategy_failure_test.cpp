#include <functional>
#include <stdexcept>
#include <string>
#include <vector>

#include "tests/support/errors.h"
#include "tests/support/logged_lines.h"
#include "tests/support/replicas.h"
#include "tests/support/run_test.h"
#include "tests/support/watchdog.h"

// What happens when replicas fail, and what is left of a run.
namespace lockstep {
namespace {

using namespace std::chrono_literals;

class FailedRunTest : public RunTest {};

INSTANTIATE_TEST_SUITE_P(Replicas, FailedRunTest, testing::Values(1, 2, 3, 4, 7));

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
INSTANTIATE_TEST_SUITE_P(ReplicasAndKinds, FailureTest,
                         testing::Combine(testing::Values(1, 2, 5), testing::Range(0, 4)));

TEST_P(FailureTest, OfAnyReplicaStopsAllAndArrivesWithItsOwnType) {
  const auto [replicas, kind] = GetParam();
  const FailureCase& failure = kFailures[kind];
  const Watchdog watchdog(60s, failure.name);
  const LoggedLines quiet;
  MirroredStrategy strategy(on_devices(replicas));
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

TEST_P(FailedRunTest, AnErrorSaysOnWhichReplicaItHappened) {
  for (int culprit = 0; culprit < replicas; ++culprit) {
    const std::string who = "on replica " + std::to_string(culprit);
    const SeenError seen = error_of([&] {
      strategy.run([&] {
        if (my_id() == culprit) throw InvalidArgument(errors::kShape, {.what = "wrong"});
      });
    });
    EXPECT_NE(seen.parts.where.find(who), std::string::npos) << seen.text;
    const std::string of_torch = message_of<c10::Error>([&] {
      strategy.run([&] {
        if (my_id() == culprit) TORCH_CHECK(false, "wrong");
      });
    });
    EXPECT_TRUE(contains(of_torch, who)) << of_torch;
  }
}

TEST_P(FailedRunTest, LibTorchsErrorsAboutDevicesNameTheCallThatMovesATensor) {
  const auto thrown = [&](const char* text) {
    return message_of<c10::Error>([&] { strategy.run([&] { TORCH_CHECK(false, text); }); });
  };
  constexpr const char* kHelp = "help: move it to the replica's device: x.to(get_replica_context().device())";
  for (const char* text : {"Expected all tensors to be on the same device, but got mat1 is on cpu",
                           "Input type (CPUFloatType) and weight type (CUDAFloatType) should be the same"})
    EXPECT_TRUE(contains(thrown(text), kHelp)) << thrown(text);
  for (const char* text : {"Input type (CUDAFloatType) and weight type (CUDAHalfType) should be the same", "wrong"})
    EXPECT_FALSE(contains(thrown(text), kHelp)) << thrown(text);
}

TEST_P(FailedRunTest, OfAReplicaWithoutRowsSaysSoInItsHelp) {
  constexpr const char* kNoRows = "this replica's batch has no rows";
  const auto batch = [&](int empty) {
    std::vector<at::Tensor> parts;
    for (int k = 0; k < replicas; ++k) parts.push_back(here(at::zeros({k == empty ? 0 : 2, 3, 4})));
    return PerReplica<at::Tensor>(std::move(parts));
  };
  const auto flat = [](const at::Tensor& x) { return x.view({x.size(0), -1}).sum(); };
  strategy.run(flat, batch(-1));
  for (int empty = 0; empty < replicas; ++empty) {
    const std::string of_torch = message_of<c10::Error>([&] { strategy.run(flat, batch(empty)); });
    EXPECT_TRUE(contains(of_torch, kNoRows)) << of_torch;
    EXPECT_TRUE(contains(of_torch, "on replica " + std::to_string(empty))) << of_torch;
    for (const std::string help : {"", "try another"}) {
      const SeenError seen = error_of([&] {
        strategy.run(
            [&](const at::Tensor& x) {
              if (x.size(0) == 0) throw InvalidArgument(errors::kShape, {.what = "wrong", .help = help});
            },
            batch(empty));
      });
      EXPECT_EQ(seen.code, Code::InvalidArgument);
      EXPECT_EQ(seen.parts.what, "wrong");
      EXPECT_TRUE(contains(seen.parts.help, kNoRows) && seen.parts.help.starts_with(help)) << seen.text;
    }
  }
  const SeenError with_rows = error_of([&] {
    strategy.run([](const at::Tensor&) { throw InvalidArgument(errors::kShape, {.what = "wrong"}); }, batch(-1));
  });
  EXPECT_EQ(with_rows.parts.help, "");
}

TEST_P(FailedRunTest, OfSeveralFailuresTheLowestReplicasIsThrown) {
  const LoggedLines quiet;
  Rendezvous everybody(replicas);
  const auto fail = [&] {
    EXPECT_TRUE(everybody.arrive());
    throw std::runtime_error(std::to_string(my_id()));
  };
  EXPECT_EQ(message_of<std::runtime_error>([&] { strategy.run(fail); }), "0");
}

/// Has no text of its own, as many exceptions of programs.
struct OutOfPaper : std::exception {};

TEST_P(FailedRunTest, WhatIsThrownIsNotLogged) {
  const LoggedLines log;
  const auto print = [] { throw OutOfPaper(); };
  EXPECT_THROW(strategy.run(print), OutOfPaper);
  EXPECT_THROW(strategy.run([&] { get_replica_context().merge_call([&](Strategy& s) { s.run(print); }); }), OutOfPaper);
  EXPECT_EQ(log.lines(), std::vector<std::string>{});
  EXPECT_EQ(strategy.last_failure()->type, "OutOfPaper");
}

TEST_P(FailedRunTest, ForDebuggingOneLineNamesTypeAndReplicaHoweverDeepTheRun) {
  const LoggedLines log(Severity::Debug);
  const auto print = [&] {
    if (my_id() == replicas - 1) throw OutOfPaper();
  };
  EXPECT_THROW(strategy.run([&] { get_replica_context().merge_call([&](Strategy& s) { s.run(print); }); }), OutOfPaper);
  EXPECT_EQ(log.lines(), std::vector<std::string>{"run failed on replica 0: OutOfPaper: std::exception"});
  EXPECT_EQ(log.count("OutOfPaper"), 1);
}

TEST_P(FailedRunTest, WhatOtherReplicasThrewIsLoggedWhereItDiffers) {
  const LoggedLines log;
  Rendezvous everybody(replicas);
  EXPECT_THROW(strategy.run([&] {
    EXPECT_TRUE(everybody.arrive());
    if (my_id() == 1) throw std::out_of_range("row 7");
    throw OutOfPaper();
  }),
               OutOfPaper);
  const auto expected =
      replicas == 1 ? std::vector<std::string>{}
                    : std::vector<std::string>{"replica 1 failed too, in another way: std::out_of_range: row 7"};
  EXPECT_EQ(log.lines(), expected);
}

TEST_P(FailedRunTest, AReplicaThatSwallowsEverythingDoesNotHideTheFailureOfAnother) {
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

TEST_P(FailedRunTest, AFailureInsideBackwardArrivesAsItself) {
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

TEST_P(FailedRunTest, AResultKeepsNothingOfTheStrategyAlive) {
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
