#include "lockstep/comm/local/replica_team.h"

#include <gtest/gtest.h>
#include <sched.h>

#include <algorithm>
#include <atomic>
#include <ctime>
#include <mutex>
#include <numeric>
#include <random>
#include <stdexcept>
#include <string>
#include <vector>

#include "tests/support/errors.h"
#include "tests/support/logged_lines.h"

namespace lockstep::local {
namespace {

using namespace std::chrono_literals;

/// What a run threw, as text; empty when it ended well.
std::string message_of(const std::optional<ReplicaFailure>& failure) {
  if (!failure) return "";
  try {
    std::rethrow_exception(failure->error);
  } catch (const std::exception& e) {
    return e.what();
  }
}

class ReplicaTeamTest : public testing::TestWithParam<int> {
 protected:
  ReplicaTeam team{{.size = GetParam()}};
};

INSTANTIATE_TEST_SUITE_P(Sizes, ReplicaTeamTest, testing::Values(1, 2, 3, 4, 7));

TEST_P(ReplicaTeamTest, RunsEveryReplicaOnceAndReplicaZeroOnTheCaller) {
  std::vector<std::thread::id> threads(static_cast<std::size_t>(team.size()));
  for (int round = 0; round < 100; ++round) {
    std::vector<int> calls(threads.size(), 0);
    ASSERT_FALSE(team.run([&](Seat& seat) {
      ++calls[static_cast<std::size_t>(seat.replica())];
      threads[static_cast<std::size_t>(seat.replica())] = std::this_thread::get_id();
    }));
    EXPECT_EQ(calls, std::vector<int>(threads.size(), 1));
  }
  EXPECT_EQ(threads[0], std::this_thread::get_id());
}

TEST_P(ReplicaTeamTest, ReplicasInTurnWorkOneAfterTheOtherBetweenMeetings) {
  std::string order;  // plain: only one replica works at a time
  std::string expected;
  const auto note = [&](const Seat& seat) { order += static_cast<char>('0' + seat.replica()); };
  for (int part = 0; part < 3; ++part) {
    for (int k = 0; k < team.size(); ++k) expected += static_cast<char>('0' + k);
  }
  for (int round = 0; round < 50; ++round) {
    order.clear();
    RunInTurn::set(true);
    ASSERT_FALSE(team.run([&](Seat& seat) {
      note(seat);
      seat.exchange("meet", nullptr, [] {});
      note(seat);
      seat.lead("merge", nullptr,
                [&] { ASSERT_FALSE(team.run([](Seat& inner) { inner.exchange("in", nullptr, [] {}); })); });
      note(seat);
    }));
    ASSERT_EQ(order, expected);
  }
  ASSERT_FALSE(team.run([](Seat&) {}));
}

/// Records the replicas' marks and waits of deferred work.
struct NotedWork : DeferredWork {
  void begin_run() override {}
  void end_run() override {}
  void mark(int replica) override { note(replica); }
  void wait_for_others(int replica) override { note(replica); }
  void note(int replica) {
    EXPECT_EQ(inside.fetch_add(1), 0) << "replica " << replica;
    std::this_thread::sleep_for(50us);
    inside.fetch_sub(1);
  }
  std::atomic<int> inside{0};
};

TEST_P(ReplicaTeamTest, ReplicasInTurnStartDeferredWorkOneAfterTheOther) {
  NotedWork work;
  ReplicaTeam with_work{{.size = GetParam(), .deferred = &work}};
  for (int round = 0; round < 20; ++round) {
    RunInTurn::set(true);
    ASSERT_FALSE(with_work.run([&](Seat& seat) {
      for (int meeting = 0; meeting < 3; ++meeting) {
        work.note(seat.replica());
        seat.exchange("meet", nullptr, [&] { work.note(seat.replica()); });
        work.note(seat.replica());
        seat.lead("merge", nullptr, [&] {
          work.note(seat.replica());
          ASSERT_FALSE(with_work.run([&](Seat& inner) {
            work.note(inner.replica());
            inner.exchange("in", nullptr, [&] { work.note(inner.replica()); });
          }));
        });
      }
    }));
  }
}

TEST_P(ReplicaTeamTest, ReplicasInTurnDoNotBeginAfterAFailure) {
  std::atomic<int> begun{0};
  RunInTurn::set(true);
  const auto failure = team.run([&](Seat&) {
    ++begun;
    throw std::runtime_error("no");
  });
  EXPECT_EQ(message_of(failure), "no");
  EXPECT_EQ(begun, 1);
}

TEST_P(ReplicaTeamTest, ExchangeShowsEverybodysPayload) {
  ASSERT_FALSE(team.run([&](Seat& seat) {
    for (int round = 0; round < 200; ++round) {
      const int mine = seat.replica() * 1000 + round;
      int sum = 0;
      seat.exchange("sum", &mine, [&] {
        for (int k = 0; k < seat.size(); ++k) sum += *static_cast<const int*>(seat.payload_of(k));
      });
      const int n = seat.size();
      EXPECT_EQ(sum, 1000 * n * (n - 1) / 2 + n * round);
    }
  }));
}

TEST_P(ReplicaTeamTest, LeadActsOnceOnTheCallerAndMayWriteToAll) {
  const auto caller = std::this_thread::get_id();
  int acts = 0;
  ASSERT_FALSE(team.run([&](Seat& seat) {
    int mine = seat.replica();
    seat.lead("merge", &mine, [&] {
      EXPECT_EQ(std::this_thread::get_id(), caller);
      ++acts;
      for (int k = 0; k < seat.size(); ++k) {
        int& theirs = *const_cast<int*>(static_cast<const int*>(seat.payload_of(k)));
        theirs = theirs * 10 + 1;
      }
    });
    EXPECT_EQ(mine, seat.replica() * 10 + 1);
  }));
  EXPECT_EQ(acts, 1);
}

TEST_P(ReplicaTeamTest, RunsNestInsideLead) {
  std::atomic<int> inner_calls{0};
  ASSERT_FALSE(team.run([&](Seat& seat) {
    for (int round = 0; round < 20; ++round) {
      seat.lead("outer", nullptr, [&] {
        EXPECT_FALSE(team.run([&](Seat& inner) {
          ++inner_calls;
          inner.lead("inner", nullptr, [&] { EXPECT_FALSE(team.run([&](Seat&) { ++inner_calls; })); });
        }));
      });
    }
  }));
  EXPECT_EQ(inner_calls, 20 * 2 * team.size());
}

TEST_P(ReplicaTeamTest, TheLowestRootCauseWinsAndTheTeamStaysUsable) {
  for (int round = 0; round < 50; ++round) {
    const auto failure = team.run([&](Seat& seat) {
      seat.exchange("meet", nullptr, [] {});
      if (seat.replica() == seat.size() - 1) throw std::runtime_error("last");
      if (seat.replica() == seat.size() - 2) throw std::runtime_error("last but one");
      seat.exchange("never complete", nullptr, [] {});
    });
    ASSERT_TRUE(failure);
    EXPECT_EQ(failure->replica, std::max(0, team.size() - 2));
    EXPECT_EQ(message_of(failure), team.size() == 1 ? "last" : "last but one");
  }
  EXPECT_FALSE(team.run([](Seat& seat) { seat.exchange("again", nullptr, [] {}); }));
}

TEST_P(ReplicaTeamTest, AFailureInLeadReachesEveryReplica) {
  std::atomic<int> seen{0};
  const auto failure = team.run([&](Seat& seat) {
    try {
      seat.lead("merge", nullptr, [] { throw std::runtime_error("in merge"); });
    } catch (const std::runtime_error&) {
      ++seen;
      throw;
    }
  });
  EXPECT_EQ(message_of(failure), "in merge");
  EXPECT_EQ(seen, team.size());
}

TEST_P(ReplicaTeamTest, AFailureInLeadThatAllCatchIsForgotten) {
  EXPECT_FALSE(team.run([&](Seat& seat) {
    for (int round = 0; round < 3; ++round) {
      EXPECT_THROW(seat.lead("merge", nullptr, [] { throw std::runtime_error("in merge"); }), std::runtime_error);
      seat.exchange("go on", nullptr, [] {});
    }
  }));
}

TEST_P(ReplicaTeamTest, UnwindingThatAProgramDressesUpIsNoRootCause) {
  const auto failure = team.run([&](Seat& seat) {
    if (seat.replica() == seat.size() - 1) throw std::runtime_error("the cause");
    try {
      seat.exchange("wait", nullptr, [] {});
    } catch (const std::exception& e) {
      throw std::runtime_error(std::string("dressed up: ") + e.what());
    }
  });
  ASSERT_TRUE(failure);
  EXPECT_EQ(message_of(failure), "the cause");
  EXPECT_EQ(failure->replica, team.size() - 1);
}

TEST_P(ReplicaTeamTest, AFailureInANestedRunIsTheLeadersToHandle) {
  ASSERT_FALSE(team.run([&](Seat& seat) {
    seat.lead("merge", nullptr, [&] {
      const auto failure = team.run([&](Seat& inner) {
        if (inner.replica() == inner.size() - 1) throw std::runtime_error("inner");
        inner.exchange("wait", nullptr, [] {});
      });
      EXPECT_EQ(message_of(failure), "inner");
    });
  }));
}

class SeveralReplicasTest : public ReplicaTeamTest {};
INSTANTIATE_TEST_SUITE_P(Sizes, SeveralReplicasTest, testing::Values(2, 3, 5));

TEST_P(SeveralReplicasTest, AReplicaThatEndsWhileOthersWaitIsReported) {
  for (int early = 0; early < team.size(); ++early) {
    for (const bool leading : {false, true}) {
      const auto failure = team.run([&](Seat& seat) {
        seat.exchange("both", nullptr, [] {});
        if (seat.replica() == early) return;
        leading ? seat.lead("second", nullptr, [] {}) : seat.exchange("second", nullptr, [] {});
      });
      EXPECT_NE(message_of(failure).find("different number of merge_call"), std::string::npos) << message_of(failure);
      EXPECT_NE(message_of(failure).find("replica " + std::to_string(early) + " returned"), std::string::npos)
          << message_of(failure);
    }
  }
}

TEST(ReplicaTeam, ErrorsHaveTheNumbersOfAllWorkers) {
  ReplicaTeam team({.size = 2, .first_id = 4});
  const auto unequal = team.run([](Seat& seat) {
    if (seat.replica() == 0) seat.exchange("merge_call", nullptr, [] {});
  });
  const auto different =
      team.run([](Seat& seat) { seat.exchange(seat.replica() == 0 ? "merge_call" : "all_reduce", nullptr, [] {}); });
  for (const auto& [failure, text] : {std::pair{unequal, "replica 5 returned after 0 meetings while replica 4 waits"},
                                      std::pair{different, "replica 4 called merge_call while replica 5 called"}})
    EXPECT_NE(message_of(failure).find(text), std::string::npos) << message_of(failure);
}

TEST_P(SeveralReplicasTest, DifferentMeetingsAreReportedAndNobodyHangs) {
  for (int odd = 0; odd < team.size(); ++odd) {
    for (const bool odd_leads : {false, true}) {
      for (const bool others_lead : {false, true}) {
        const auto failure = team.run([&](Seat& seat) {
          const bool is_odd = seat.replica() == odd;
          const char* name = is_odd ? "all_gather" : "all_reduce";
          (is_odd ? odd_leads : others_lead) ? seat.lead(name, nullptr, [] {}) : seat.exchange(name, nullptr, [] {});
        });
        EXPECT_NE(message_of(failure).find("different operations"), std::string::npos) << message_of(failure);
      }
    }
  }
}

TEST_P(SeveralReplicasTest, ALeaderThatGoesOnWithoutAnEndedReplicaLeadsNobodyAstray) {
  for (int round = 0; round < 200; ++round) {
    std::atomic<int> led{0};
    const auto failure = team.run([&](Seat& seat) {
      if (seat.replica() == seat.size() - 1) return;
      for (int attempt = 0; attempt < 2; ++attempt) {
        try {
          seat.lead("merge", nullptr, [&] { FAIL() << "a meeting without everybody"; });
          ++led;
        } catch (const std::exception&) {
          if (attempt == 1 || seat.replica() != 0) throw;
        }
      }
    });
    EXPECT_TRUE(failure);
    EXPECT_EQ(led, 0);
  }
}

TEST_P(SeveralReplicasTest, WorkThatThrowsDoesSoAfterEverybodyHasWorked) {
  std::atomic<int> worked{0};
  std::atomic<bool> failing{false};
  const auto failure = team.run([&](Seat& seat) {
    int payload = 7;
    seat.exchange("work", &payload, [&] {
      if (seat.replica() == 0) {
        failing = true;
        throw std::runtime_error("replica 0 cannot");
      }
      while (!failing) std::this_thread::yield();
      for (int i = 0; i < 1000; ++i) std::this_thread::yield();  // the failing replica's payload must still be there
      worked += *static_cast<const int*>(seat.payload_of(0));
    });
  });
  EXPECT_EQ(message_of(failure), "replica 0 cannot");
  EXPECT_EQ(worked, 7 * (team.size() - 1));
}

TEST_P(SeveralReplicasTest, ASecondThreadIsRefused) {
  std::string refused;
  ASSERT_FALSE(team.run([&](Seat& seat) {
    if (seat.replica() != 0) return;
    std::thread other([&] { refused = error_of([&] { team.run([](Seat&) {}); }).text; });
    other.join();
  }));
  EXPECT_NE(refused.find("already running"), std::string::npos);
}

TEST_P(SeveralReplicasTest, AMissedDeadlineIsAnErrorForAll) {
  const LoggedLines log;
  const auto failure = team.run([&](Seat& seat) {
    if (seat.replica() == 1) log.await("deadline exceeded");
    seat.exchange(
        "slow", nullptr, [] {}, Deadline::after(10ms));
  });
  EXPECT_NE(message_of(failure).find("did not finish within its timeout"), std::string::npos) << message_of(failure);
  EXPECT_FALSE(team.run([](Seat&) {}));
}

TEST_P(SeveralReplicasTest, ALateLeaderIsAnErrorForAll) {
  const LoggedLines log;
  const auto failure = team.run([&](Seat& seat) {
    if (seat.replica() == 0) log.await("deadline exceeded");
    seat.lead(
        "slow", nullptr, [] {}, Deadline::after(10ms));
  });
  EXPECT_NE(message_of(failure).find("did not finish within its timeout"), std::string::npos) << message_of(failure);
}

TEST_P(SeveralReplicasTest, MeetingsAreCountedAsTheProgramCountsThem) {
  const auto failure = team.run([&](Seat& seat) {
    seat.exchange("first", nullptr, [] {});
    if (seat.replica() != 0) seat.exchange("second", nullptr, [] {});
  });
  EXPECT_NE(message_of(failure).find("returned after 1 meeting "), std::string::npos) << message_of(failure);
}

/// Streams as lists of their dependencies: replica k's work number n has finished by the time replica j continues, if
/// `known[j][k] >= n`.
class CountedStreams final : public DeferredWork {
 public:
  explicit CountedStreams(int size)
      : started(static_cast<std::size_t>(size)),
        known(started.size(), std::vector<int>(started.size())),
        marked_(known) {}

  void begin_run() override { ++runs_begun; }
  void end_run() override { ++runs_ended; }
  void mark(int replica) override {
    const auto k = static_cast<std::size_t>(replica);
    const std::lock_guard lock(mutex_);
    known[k][k] = started[k];
    marked_[k] = known[k];
  }
  void wait_for_others(int replica) override {
    const auto k = static_cast<std::size_t>(replica);
    const std::lock_guard lock(mutex_);
    for (const auto& other : marked_) {
      for (std::size_t i = 0; i < other.size(); ++i) known[k][i] = std::max(known[k][i], other[i]);
    }
  }
  /// Whether `replica` comes after the first `works` of all replicas.
  bool comes_after_all(int replica, int works) const {
    const std::lock_guard lock(mutex_);
    const auto& mine = known[static_cast<std::size_t>(replica)];
    return std::all_of(mine.begin(), mine.end(), [&](int done) { return done >= works; });
  }
  bool comes_after(int replica, int other, int works) const {
    const std::lock_guard lock(mutex_);
    return known[static_cast<std::size_t>(replica)][static_cast<std::size_t>(other)] >= works;
  }
  void start(int replica) { ++started[static_cast<std::size_t>(replica)]; }

  int runs_begun = 0;
  int runs_ended = 0;
  std::vector<int> started;             ///< per replica; written on its thread
  std::vector<std::vector<int>> known;  ///< by replica, of each replica

 private:
  mutable std::mutex mutex_;
  std::vector<std::vector<int>> marked_;
};

TEST_P(SeveralReplicasTest, MeetingsOrderWorkThatGoesOnElsewhere) {
  CountedStreams streams(GetParam());
  ReplicaTeam with_streams({.size = GetParam(), .deferred = &streams});
  const auto failure = with_streams.run([&](Seat& seat) {
    const int me = seat.replica();
    EXPECT_EQ(streams.runs_begun, 1);
    for (int round = 0; round < 50; ++round) {
      const int before = 3 * round;
      streams.start(me);
      seat.exchange("exchange", nullptr, [&] {
        EXPECT_TRUE(streams.comes_after_all(me, before + 1));
        streams.start(me);
      });
      EXPECT_TRUE(streams.comes_after_all(me, before + 2));  // memory that others have read may be reused
      streams.start(me);
      seat.lead("lead", nullptr, [&] { EXPECT_TRUE(streams.comes_after_all(0, before + 3)); });
      EXPECT_TRUE(streams.comes_after(me, 0, before + 3));
    }
  });
  EXPECT_EQ(message_of(failure), "");
  EXPECT_EQ(streams.runs_ended, 1);
  EXPECT_NE(message_of(with_streams.run([](Seat&) { throw std::runtime_error("on purpose"); })), "");
  EXPECT_EQ(streams.runs_ended, 2);
}

TEST(ReplicaTeam, NamesTheReplicaThatIsWaitedFor) {
  const LoggedLines log;
  ReplicaTeam team({.size = 2, .warn_after = 20ms});
  ASSERT_FALSE(team.run([&](Seat& seat) {
    if (seat.replica() == 1) log.await("replica 1 to reach all_reduce");
    seat.exchange("all_reduce", nullptr, [] {});
  }));
  EXPECT_GE(log.count("replica 1 to reach all_reduce"), 1);
}

/// Keeps the calling thread, and the threads it starts meanwhile, on one core.
class OneCore {
 public:
  OneCore() {
    sched_getaffinity(0, sizeof(outer_), &outer_);
    cpu_set_t one;
    CPU_ZERO(&one);
    CPU_SET(sched_getcpu(), &one);
    sched_setaffinity(0, sizeof(one), &one);
  }
  ~OneCore() { sched_setaffinity(0, sizeof(outer_), &outer_); }
  OneCore(const OneCore&) = delete;
  OneCore& operator=(const OneCore&) = delete;

 private:
  cpu_set_t outer_{};
};

TEST(ReplicaTeam, ReplicasOnOneCoreSleepInsteadOfSpinning) {
  constexpr int kMeetings = 300;
  const OneCore one_core;
  ReplicaTeam team({.size = 2, .spin = 1h});
  const std::clock_t start = std::clock();
  ASSERT_FALSE(team.run([](Seat& seat) {
    for (int i = 0; i < kMeetings; ++i) seat.exchange("meet", nullptr, [] {});
  }));
  // A spinning thread uses up its slice of the core, a millisecond or more, at every meeting.
  const double seconds = static_cast<double>(std::clock() - start) / CLOCKS_PER_SEC;
  EXPECT_LT(seconds, kMeetings * 500e-6);
}

TEST(ReplicaTeam, RefusesAnEmptyTeam) { EXPECT_THROW(ReplicaTeam({.size = 0}), InvalidArgument); }

/// Random programs: every replica follows the same random script of meetings, nested runs and failures; the outcome is
/// known beforehand.
TEST(ReplicaTeam, TenThousandRandomRunsEndAsForetold) {
  std::mt19937 random(20240229);
  const auto pick = [&](int below) { return static_cast<int>(random() % static_cast<unsigned>(below)); };
  const char* const long_run = std::getenv("LOCKSTEP_TEST_LONG");
  const int runs = long_run != nullptr ? 100'000 : 10'000;
  std::vector<std::unique_ptr<ReplicaTeam>> teams;
  for (const int size : {1, 2, 3, 4, 8}) {
    teams.push_back(std::make_unique<ReplicaTeam>(
        ReplicaTeam::Options{.size = size, .spin = std::chrono::microseconds(size > 2 ? 1 : 50)}));
  }
  for (int round = 0; round < runs; ++round) {
    ReplicaTeam& team = *teams[static_cast<std::size_t>(pick(static_cast<int>(teams.size())))];
    const int meetings = pick(5);
    const auto kinds = random();
    const int failing = pick(3) == 0 ? pick(team.size()) : -1;
    const int ending = failing < 0 && team.size() > 1 && pick(5) == 0 ? pick(team.size()) : -1;
    const int when = pick(meetings + 1);
    std::atomic<int> inner{0};
    int inner_expected = 0;
    const auto failure = team.run([&](Seat& seat) {
      for (int m = 0; m <= meetings; ++m) {
        if (m == when && seat.replica() == failing) throw std::runtime_error("foretold");
        if (m == when && seat.replica() == ending) return;
        if (m == meetings) return;
        const auto kind = (kinds >> (3 * m)) % 4;
        const int mine = seat.replica() + 1;
        if (kind == 0) {
          int sum = 0;
          seat.exchange("exchange", &mine, [&] {
            for (int k = 0; k < seat.size(); ++k) sum += *static_cast<const int*>(seat.payload_of(k));
          });
          ASSERT_EQ(sum, seat.size() * (seat.size() + 1) / 2);
        } else {
          seat.lead("lead", &mine, [&] {
            if (kind != 3) return;
            inner_expected += seat.size();
            ASSERT_FALSE(team.run([&](Seat& deeper) {
              deeper.exchange("deeper", nullptr, [] {});
              ++inner;
            }));
          });
        }
      }
    });
    EXPECT_EQ(inner, inner_expected);
    if (failing >= 0) {
      ASSERT_TRUE(failure);
      EXPECT_EQ(failure->replica, failing);
      EXPECT_EQ(message_of(failure), "foretold");
    } else if (ending >= 0 && when < meetings) {
      ASSERT_TRUE(failure);
      EXPECT_NE(message_of(failure).find("different number"), std::string::npos) << message_of(failure);
    } else {
      EXPECT_FALSE(failure) << message_of(failure);
    }
  }
}

}  // namespace
}  // namespace lockstep::local
