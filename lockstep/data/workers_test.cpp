#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <numeric>
#include <string>
#include <system_error>
#include <thread>

#include "lockstep/base/error.h"
#include "lockstep/data/cardinality.h"
#include "lockstep/data/random_key.h"
#include "lockstep/data/shuffle_buffer.h"
#include "lockstep/data/workers.h"

namespace lockstep::data {
namespace {

struct Piece {
  std::vector<int> values;
};

/// Counts up to `limit`, a few numbers to a piece; squares them.
WorkerFunctions<Piece> squares(int& counter, int limit) {
  return {[&counter, limit](Piece& piece) {
            piece.values.clear();
            for (int i = 0; i < 3 && counter < limit; ++i) piece.values.push_back(counter++);
            return !piece.values.empty();
          },
          [](Piece& piece) {
            for (int& value : piece.values) {
              for (int i = 0; value % 50 == 0 && i < 100; ++i) std::this_thread::yield();  // some take longer
              value *= value;
            }
          }};
}

TEST(Workers, PiecesComeInTheOrderOfTheInput) {
  for (const int threads : {1, 2, 4}) {
    for (const std::size_t slots : {1u, 2u, 7u}) {
      int counter = 0;
      Workers<Piece> workers(threads, slots, squares(counter, 1000));
      Piece piece;
      int expected = 0;
      while (workers.take(piece))
        for (const int value : piece.values) {
          ASSERT_EQ(value, expected * expected);
          ++expected;
        }
      EXPECT_EQ(expected, 1000);
      EXPECT_FALSE(workers.take(piece)) << "the end stays the end";
    }
  }
}

/// Counts how many there are.
struct CountedPiece {
  CountedPiece() { ++made(); }
  static std::atomic<int>& made() {
    static std::atomic<int> count{0};
    return count;
  }
  int value = 0;
};

TEST(Workers, ARingAsLargeAsYouLikeCostsWhatIsUsedOfIt) {
  std::atomic<int> filled{0};
  {
    Workers<CountedPiece> workers(2, 1'000'000,
                                  {[&](CountedPiece& piece) {
                                     piece.value = filled++;
                                     return piece.value < 1000;
                                   },
                                   [](CountedPiece&) {}});
    CountedPiece piece;
    for (int i = 0; i < 1000; ++i) {
      ASSERT_TRUE(workers.take(piece));
      ASSERT_EQ(piece.value, i);
    }
    ASSERT_FALSE(workers.take(piece));
    EXPECT_EQ(workers.ready(), 0u);
  }
  EXPECT_LT(CountedPiece::made().load(), 2000);
}

TEST(Workers, WithoutOrderNothingIsLostOrDoubled) {
  for (const int threads : {1, 3}) {
    int counter = 0;
    Workers<Piece> workers(threads, 3, squares(counter, 1000), PieceOrder::AsFinished);
    Piece piece;
    long long sum = 0, count = 0;
    while (workers.take(piece))
      for (const int value : piece.values) sum += value, ++count;
    EXPECT_EQ(count, 1000);
    EXPECT_EQ(sum, 999LL * 1000 * 1999 / 6);
    EXPECT_FALSE(workers.take(piece));
  }
}

TEST(Workers, StoppingInTheMiddleNeverHangs) {
  for (int round = 0; round < 200; ++round) {
    int counter = 0, other = 0;
    Workers<Piece> ordered(1 + round % 4, 1 + static_cast<std::size_t>(round) % 5, squares(counter, 1'000'000));
    Workers<Piece> unordered(1 + round % 3, 2, squares(other, 1'000'000), PieceOrder::AsFinished);
    Piece piece;
    for (int i = 0; i < round % 7; ++i) {
      ASSERT_TRUE(ordered.take(piece));
      ASSERT_TRUE(unordered.take(piece));
    }
  }
}

/// A thread that cannot be started if two are running already.
class ScarceThread {
 public:
  template <class Run>
  explicit ScarceThread(Run run) {
    if (alive() == 2) throw std::system_error(std::make_error_code(std::errc::resource_unavailable_try_again));
    thread_ = std::thread(std::move(run));
    ++alive();
  }
  ScarceThread(ScarceThread&&) = default;
  bool joinable() const { return thread_.joinable(); }
  void join() {
    thread_.join();
    --alive();
  }
  static int& alive() {
    static int count = 0;
    return count;
  }

 private:
  std::thread thread_;
};

TEST(Workers, ThatCouldNotBeStartedAreNotTriedAgain) {
  StartOnce start;
  int tries = 0;
  for (int k = 0; k < 3; ++k) {
    EXPECT_THROW(start([&] {
                   ++tries;
                   throw std::runtime_error("no threads");
                 }),
                 std::runtime_error);
  }
  EXPECT_EQ(tries, 1);
}

TEST(Workers, ThatCannotAllBeStartedReadNothingAndSaySo) {
  int counter = 0;
  const auto message = [&](auto start) {
    try {
      start();
    } catch (const ResourceExhausted& error) {
      EXPECT_EQ(error.number(), errors::kNoThreads);
      EXPECT_NE(error.text().help.find("fewer parallel_calls"), std::string::npos) << error.what();
      return error.text().what;
    }
    return std::string();
  };
  const std::string expected = "only 2 of 5 threads could be started";
  EXPECT_EQ(message([&] { Workers<Piece, ScarceThread>(5, 8, squares(counter, 100)); }), expected);
  EXPECT_EQ(message([&] { Workers<Piece, ScarceThread>(5, 8, squares(counter, 100), PieceOrder::AsFinished); }),
            expected);
  EXPECT_EQ(ScarceThread::alive(), 0) << "those that were started are gone";
  EXPECT_EQ(counter, 0) << "and the next try finds everything";
  Workers<Piece, ScarceThread> enough(2, 8, squares(counter, 100));
  int values = 0;
  for (Piece piece; enough.take(piece);) values += static_cast<int>(piece.values.size());
  EXPECT_EQ(values, 100);
}

TEST(Workers, ReadAheadIsBounded) {
  std::atomic<int> filled{0};
  Workers<int> workers(2, 4,
                       {[&](int& value) {
                          value = filled.fetch_add(1);
                          return true;
                        },
                        [](int&) {}});
  EXPECT_LE(filled.load(), 4);
  for (int taken = 0; taken < 2000; ++taken) {
    int value = -1;
    workers.take(value);
    ASSERT_EQ(value, taken);
    ASSERT_LE(filled.load(), taken + 1 + 4);
  }
}

TEST(ShuffleBuffer, NumbersFollowTheSameChoicesAsItems) {
  ShuffleBuffer<std::string> words(9, 4);
  ShuffleBuffer<int> numbers(9, 4);
  int next_word = 0, next_number = 0;
  std::string word;
  int number = 0;
  for (int i = 0; i < 20; ++i) {
    const bool more = words.next(word, [&](std::string& s) {
      s = std::to_string(next_word);
      return next_word++ < 15;
    });
    ASSERT_EQ(more, numbers.next(number, [&](int& n) {
      n = next_number;
      return next_number++ < 15;
    }));
    if (more) {
      EXPECT_EQ(word, std::to_string(number));
    }
  }
}

TEST(RandomStream, IsTheSameEverywhereAndUnbiased) {
  RandomStream stream(42);
  const std::uint64_t first = stream.next();
  EXPECT_EQ(RandomStream(42).next(), first);
  EXPECT_NE(RandomStream(43).next(), first);
  std::vector<int> counts(7, 0);
  for (int i = 0; i < 70'000; ++i) ++counts[stream.below(7)];
  for (const int count : counts) EXPECT_NEAR(count, 10'000, 500);
  EXPECT_EQ(RandomStream(1).below(1), 0u);
}

TEST(Cardinality, WhatStagesDoToIt) {
  const auto infinite = Cardinality::infinite(), unknown = Cardinality::unknown();
  EXPECT_EQ(batched(10, 3, false), Cardinality(4));
  EXPECT_EQ(batched(10, 3, true), Cardinality(3));
  EXPECT_EQ(batched(infinite, 3, true), infinite);
  EXPECT_EQ(repeated(10, 2), Cardinality(20));
  EXPECT_EQ(repeated(10, -1), infinite);
  EXPECT_EQ(repeated(0, -1), Cardinality(0));
  EXPECT_EQ(repeated(unknown, 0), Cardinality(0));
  EXPECT_EQ(taken(infinite, 5), Cardinality(5));
  EXPECT_EQ(taken(unknown, 5), unknown);
  EXPECT_EQ(taken(7, -1), Cardinality(7));
  EXPECT_EQ(skipped(7, 9), Cardinality(0));
  EXPECT_EQ(sharded(10, 3, 0), Cardinality(4));
  EXPECT_EQ(sharded(10, 3, 1), Cardinality(3));
  EXPECT_EQ(zipped(infinite, 3), Cardinality(3));
  EXPECT_EQ(zipped(unknown, 3), unknown);
  EXPECT_EQ(concatenated(infinite, unknown), infinite);
  EXPECT_EQ(to_string(infinite) + to_string(unknown) + to_string(Cardinality(5)), "infiniteunknown5");
}

}  // namespace
}  // namespace lockstep::data
