#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <functional>
#include <numeric>

#include "lockstep/base/error.h"
#include "lockstep/data/stages/keyed_permutation.h"
#include "tests/support/datasets.h"

// Positions in shuffles that are restored without repeating all earlier draws.
namespace lockstep::data {
namespace {

using Build = std::function<Dataset<at::Tensor>()>;

/// The next few elements after skipping `count`.
Places some_after(DatasetIterator<at::Tensor> iterator, std::int64_t count) {
  iterator.skip(count);
  return places_of(std::move(iterator), 20);
}

TEST(ShufflePosition, LongPassesGoOnWhereTheyWere) {
  const auto same = [](at::Tensor x) { return x; };
  const std::vector<std::pair<std::string, Build>> pipelines = {
      {"small buffer", [] { return range(100'000).shuffle(10); }},
      {"buffer between marks", [] { return range(100'000).shuffle(20'000); }},
      {"largest stored buffer", [] { return range(100'000).shuffle(65'536); }},
      {"buffer that is not stored", [] { return range(100'000).shuffle(65'537); }},
      {"all", [] { return range(100'000).shuffle(100'000); }},
      {"all elements", [=] { return range(100'000).map(same).shuffle(200'000); }},
      {"all of a part", [] { return range(200'000).skip(7).take(100'000).shuffle(1'000'000); }},
      {"elements", [=] { return range(100'000).map(same).shuffle(100); }},
      {"twice", [] { return range(100'000).shuffle(50).shuffle(70); }},
      {"repeated", [] { return range(40'000).shuffle(30).repeat(3); }},
      {"of passes", [] { return range(1'000).repeat(100).shuffle(300); }},
      {"shard", [] { return range(300'000).shuffle(3'000).shard(3, 2); }},
      {"read ahead", [=] { return range(100'000).shuffle(40).map(same, {.parallel_calls = 2}).prefetch(10); }},
  };
  for (const auto& [name, build] : pipelines) {
    const auto start = [&begin = build] { return begin().iterator({.job_seed = 7, .epoch = 2}); };
    for (const std::int64_t at : {0, 1, 16'383, 16'384, 16'385, 65'536, 99'990, 100'000}) {
      auto iterator = start();
      iterator.skip(at);
      const IteratorState state = IteratorState::parse(iterator.state().serialize());
      EXPECT_EQ(places_of(resume(build(), state), 20), some_after(start(), at)) << name << " at " << at;
      auto resumed = resume(build(), state);
      const Places more = some_after(start(), at + 20'000);
      EXPECT_EQ(some_after(resume(build(), state), 20'000), more) << name << " behind " << at;
      resumed.skip(20'000);
      EXPECT_EQ(places_of(resume(build(), resumed.state()), 20), more) << name << " resumed twice behind " << at;
    }
  }
}

TEST(ShufflePosition, APositionDoesNotDependOnHowManyAreReadAtATime) {
  const auto build = [] { return range(100'000).shuffle(500); };
  auto one_by_one = build().iterator({.job_seed = 7, .epoch = 0});
  for (int i = 0; i < 33'000; ++i) one_by_one.next();
  auto at_once = build().iterator({.job_seed = 7, .epoch = 0});
  at_once.skip(33'000);
  EXPECT_EQ(one_by_one.state(), at_once.state());
}

// A prefetch below a shuffle turns numbers into elements; it is not part of a pipeline's identity.
TEST(ShufflePosition, NumbersAndElementsGoOnFromEachOther) {
  for (const std::int64_t buffer : {100, 100'000}) {
    const Build numbers = [=] { return range(100'000).shuffle(buffer); };
    const Build elements = [=] { return range(100'000).prefetch(3).shuffle(buffer); };
    for (const auto& [from, to] : {std::pair(numbers, elements), std::pair(elements, numbers)}) {
      auto iterator = from().iterator({.job_seed = 7, .epoch = 0});
      iterator.skip(50'000);
      const IteratorState state = iterator.state();
      EXPECT_EQ(places_of(resume(to(), state), 20), places_of(std::move(iterator), 20)) << buffer;
    }
  }
}

TEST(ShufflePosition, ResumingTakesNoLongerFarAway) {
  constexpr std::int64_t kFar = 100'000'000;
  const std::vector<std::pair<std::string, Build>> pipelines = {
      {"in order", [] { return range(2 * kFar).batch(100); }},
      {"small buffer", [] { return range(2 * kFar).shuffle(1'000).batch(100); }},
      {"full", [] { return range(2 * kFar).shuffle(2 * kFar).batch(100); }},
      {"passes", [] { return range(1'000'000).shuffle(1'000'000).repeat().batch(100); }},
  };
  for (const auto& [name, build] : pipelines) {
    auto iterator = build().iterator({.job_seed = 7, .epoch = 0});
    ASSERT_EQ(iterator.skip(kFar / 100), kFar / 100) << name;
    const IteratorState state = iterator.state();
    const auto expected = integers(*iterator.next());
    double least = 1e9;  // ms; a busy machine may delay one of them
    for (int attempt = 0; attempt < 5 && least > 50; ++attempt) {
      const auto begun = std::chrono::steady_clock::now();
      auto resumed = resume(build(), state);
      EXPECT_EQ(integers(*resumed.next()), expected) << name;
      const std::chrono::duration<double, std::milli> took = std::chrono::steady_clock::now() - begun;
      least = std::min(least, took.count());
    }
    EXPECT_LT(least, 250) << name << ": the goal is 50 ms; drawing all again would take 500 ms and more";
  }
}

TEST(ShufflePosition, AStateOfAnotherVersionSaysSo) {
  auto iterator = range(3).iterator({});
  std::string text = iterator.state().serialize();
  text.replace(text.find('4'), 1, "3");
  EXPECT_PRED2(contains, error_of([&] { IteratorState::parse(text); }), "another version of Lockstep");
}

TEST(KeyedPermutation, IsAnOrderOfAllNumbers) {
  for (const std::uint64_t size : {1, 2, 3, 4, 5, 17, 64, 65, 1'000, 65'536, 65'537}) {
    std::vector<std::uint64_t> firsts;
    for (const std::uint64_t key : {1, 2}) {
      const KeyedPermutation order(key, size);
      std::vector<std::uint64_t> numbers(size);
      for (std::uint64_t i = 0; i < size; ++i) numbers[i] = order(i);
      if (size >= 64) {
        const auto fixed = [&] {
          std::uint64_t count = 0;
          for (std::uint64_t i = 0; i < size; ++i) count += numbers[i] == i ? 1 : 0;
          return count;
        }();
        EXPECT_LE(fixed, 8u) << size << ": one is to be expected";
        firsts.push_back(numbers[0] * size + numbers[1]);
      }
      std::ranges::sort(numbers);
      for (std::uint64_t i = 0; i < size; ++i) ASSERT_EQ(numbers[i], i) << size;
    }
    if (size >= 1'000) {
      EXPECT_NE(firsts[0], firsts[1]) << size;
    }
  }
}

// Each number comes first for about equally many keys, and each distance between neighbours is about equally frequent.
TEST(KeyedPermutation, FavoursNoNumber) {
  constexpr std::uint64_t kSize = 50;
  constexpr int kKeys = 50'000;
  std::vector<int> first(kSize);
  std::vector<int> distance(kSize);
  for (int key = 0; key < kKeys; ++key) {
    const KeyedPermutation order(mix(static_cast<std::uint64_t>(key)), kSize);
    ++first[order(0)];
    ++distance[(order(1) + kSize - order(0)) % kSize];
  }
  const auto chi_squared = [](const std::vector<int>& counts, std::size_t from) {
    const double expected = kKeys / static_cast<double>(counts.size() - from);
    return std::accumulate(
        counts.begin() + static_cast<std::ptrdiff_t>(from), counts.end(), 0.0,
        [=](double sum, int count) { return sum + (count - expected) * (count - expected) / expected; });
  };
  EXPECT_LT(chi_squared(first, 0), 100) << "49 degrees of freedom: 1 in 20,000 keys is above";
  EXPECT_LT(chi_squared(distance, 1), 100) << "48 degrees of freedom";
}

}  // namespace
}  // namespace lockstep::data
