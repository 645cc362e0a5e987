#include <ATen/ops/zeros.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <functional>

#include "lockstep/base/error.h"
#include "lockstep/data/workers.h"
#include "tests/support/datasets.h"

namespace lockstep::data {
namespace {

using Values = std::vector<std::int64_t>;

/// Throws at row `bad`.
auto failing_at(std::int64_t bad) {
  return [bad](const at::Tensor& x) {
    if (x.item<std::int64_t>() == bad) throw std::runtime_error("bad row");
    return x;
  };
}

TEST(Errors, ErrorsAreCountedAndLeftOut) {
  const auto counter = std::make_shared<ErrorCounter>();
  const auto picky = [](const at::Tensor& x) {
    if (x.item<std::int64_t>() % 3 == 1) throw std::runtime_error("no " + std::to_string(x.item<std::int64_t>()));
    return x;
  };
  for (const int calls : {0, 3}) {
    EXPECT_EQ(values_of(range(8).map(picky, {.parallel_calls = calls}).ignore_errors({.counter = counter})),
              (Values{0, 2, 3, 5, 6}));
    EXPECT_EQ(values_of(range(8).map(picky, {.parallel_calls = calls}).prefetch(2).ignore_errors()),
              (Values{0, 2, 3, 5, 6}));
  }
  EXPECT_EQ(counter->count(), 6);
  EXPECT_EQ(counter->last_message(), "no 7");
  const auto hopeless =
      from_generator([] { return []() -> std::optional<at::Tensor> { throw std::runtime_error("x"); }; });
  EXPECT_THROW(hopeless.ignore_errors({.give_up_after = 5}).to_vector(), std::runtime_error);
}

TEST(Errors, ThatSomethingHasRunOutIsNoErrorOfAnElement) {
  const auto scarce = range(4).map([](const at::Tensor& x) -> at::Tensor {
    if (x.defined()) throw_no_more_threads(1, 2, "none left");
    return x;
  });
  EXPECT_THROW(scarce.ignore_errors().to_vector(), ResourceExhausted);
  EXPECT_THROW(scarce.filter([](const at::Tensor&) { return true; }).skip(2).to_vector(), ResourceExhausted);
}

TEST(Errors, AnythingThrownIsLeftOut) {
  const auto counter = std::make_shared<ErrorCounter>();
  const auto odd = [](const at::Tensor& x) {
    if (x.item<std::int64_t>() == 1) throw 42;
    return x;
  };
  EXPECT_EQ(values_of(range(3).map(odd).ignore_errors({.counter = counter})), (Values{0, 2}));
  EXPECT_EQ(counter->count(), 1);
  EXPECT_EQ(counter->last_message(), "an exception that is not a std::exception");
}

TEST(Errors, ErrorsComeInOrderAndNameTheStage) {
  const auto picky = [](const at::Tensor& x) {
    if (x.item<std::int64_t>() == 5) throw InvalidArgument(errors::kShape, {.what = "five"});
    return x;
  };
  for (const int calls : {0, 4}) {
    auto it = range(10).map(picky, {.parallel_calls = calls, .name = "picky"}).prefetch(2).iterator();
    for (std::int64_t i = 0; i < 5; ++i) EXPECT_EQ(it.next()->item<std::int64_t>(), i);
    const std::string error = error_of([&] { it.next(); });
    EXPECT_TRUE(contains(error, "five") && contains(error, "in map(picky")) << error;
    EXPECT_EQ(it.next()->item<std::int64_t>(), 6);
  }
}

TEST(Errors, WhatIsZippedStaysTogetherAfterAnError) {
  Values left, right;
  for (const auto& [a, b] : zip(range(6).map(failing_at(2)), range(6)).ignore_errors()) {
    left.push_back(a.item<std::int64_t>());
    right.push_back(b.item<std::int64_t>());
  }
  EXPECT_EQ(left, (Values{0, 1, 3, 4, 5}));
  EXPECT_EQ(right, left);
}

TEST(Errors, AScanKeepsItsStateWhenTheFunctionThrowsAndBetweenPasses) {
  const auto sums = range(5).scan(at::zeros({}, at::kLong), [](at::Tensor sum, const at::Tensor& x) {
    if (x.item<std::int64_t>() == 2) throw std::runtime_error("bad row");
    sum.add_(x);
    return std::pair(sum, sum.clone());
  });
  for (int pass = 0; pass < 2; ++pass)
    EXPECT_EQ(values_of(sums.ignore_errors()), (Values{0, 1, 4, 8})) << "pass " << pass;
}

TEST(Errors, RandomNumbersBehindAnErrorDoNotDependOnThreads) {
  const auto numbers = [](int calls) {
    return places_of(
        range(50)
            .map(failing_at(7))
            .map_with_random([](const at::Tensor& x, RowRandom& random) { return x * 1000 + random.below(1000); },
                             {.parallel_calls = calls, .seed = 5})
            .iterator({.job_seed = 0, .epoch = 0}));
  };
  for (const int calls : {1, 2, 4}) EXPECT_EQ(numbers(calls), numbers(0));
}

TEST(Errors, TheFirstRowThatDoesNotFitIsNamedWithAnyNumberOfThreads) {
  const auto odd_rows = [](const at::Tensor& x) {
    const auto row = x.item<std::int64_t>();
    if (row == 37) throw std::runtime_error("a later row");
    return at::zeros({row == 29 || row == 30 || row == 35 ? row : 2});
  };
  const auto source = [](bool rows) { return rows ? range(64) : opaque_range(64); };
  const std::string expected = error_of([&] { source(true).map(odd_rows).batch(20).to_vector(); });
  EXPECT_TRUE(contains(expected, "row 0 is float32[2], row 9 is float32[29]")) << expected;
  for (int round = 0; round < 10; ++round)
    for (const bool rows : {true, false})
      for (const int calls : {0, 1, 2, 4})
        EXPECT_EQ(error_of([&] { source(rows).map(odd_rows, {.parallel_calls = calls}).batch(20).to_vector(); }),
                  expected);
}

TEST(Errors, RowsThatCannotBeBatchedAreRefusedAlikeWithAnyNumberOfThreads) {
  const auto words = [](const at::Tensor&) { return Strings{"a", "b"}; };
  const auto unset = [](const at::Tensor&) { return at::Tensor(); };
  for (const int calls : {0, 2}) {
    EXPECT_THROW(range(5).map(words, {.parallel_calls = calls}).batch(2).to_vector(), Unimplemented);
    EXPECT_THROW(range(5).map(unset, {.parallel_calls = calls}).batch(2).to_vector(), InvalidArgument);
  }
}

TEST(Caches, CachesComputeOnce) {
  int calls = 0;
  const auto counted = [&](const at::Tensor& x) {
    ++calls;
    return x * 3;
  };
  const auto cached = range(6).map(counted).cache();
  EXPECT_EQ(values_of(cached.take(2)), (Values{0, 3}));
  EXPECT_EQ(calls, 2) << "an incomplete pass is not remembered";
  EXPECT_EQ(values_of(cached), (Values{0, 3, 6, 9, 12, 15}));
  EXPECT_EQ(calls, 8);
  EXPECT_EQ(values_of(cached.map([](at::Tensor x) { return x.zero_(); })), Values(6, 0));
  EXPECT_EQ(values_of(cached), (Values{0, 3, 6, 9, 12, 15})) << "writing into elements leaves the cache alone";
  EXPECT_EQ(rows_of(cached.batch(4)), (Rows{{0, 3, 6, 9}, {12, 15}}));
  EXPECT_EQ(calls, 8);
  const auto words = from_tensor_slices(Strings{"a", "b"}).cache();
  EXPECT_EQ(words.to_vector(), words.to_vector());
}

TEST(Caches, CacheFilesServeLaterPrograms) {
  const std::string path = testing::TempDir() + "/lockstep_cache_" + std::to_string(::getpid());
  int calls = 0;
  const auto build = [&] {
    return range(5)
        .map([&](const at::Tensor& x) {
          ++calls;
          return std::tuple<at::Tensor, std::string, std::vector<at::Tensor>>(x, "row", {x, x + 1});
        })
        .cache(path);
  };
  EXPECT_EQ(build().to_vector().size(), 5u);
  const auto again = build().to_vector();
  EXPECT_EQ(calls, 5);
  EXPECT_EQ(std::get<2>(again[4])[1].item<std::int64_t>(), 5);
  EXPECT_EQ(std::get<1>(again[4]), "row");
  EXPECT_THROW(range(6).cache(path).to_vector(), FailedPrecondition) << "another pipeline";
  std::filesystem::resize_file(path, std::filesystem::file_size(path) - 40);
  EXPECT_THROW(build().to_vector(), DataLoss) << "cut off";
  std::filesystem::remove(path);
}

TEST(Caches, ACacheIsFilledByWhoeverReadsTheFirstPass) {
  int calls = 0;
  const auto counted = [&](const at::Tensor& x) {
    ++calls;
    return x * 3;
  };
  const std::string path = testing::TempDir() + "/lockstep_filled_cache_" + std::to_string(::getpid());
  using Above = std::function<Dataset<at::Tensor>(const Dataset<at::Tensor>&)>;
  const std::vector<std::pair<Above, Values>> cases = {
      {[](const auto& d) { return d.shard(2, 1); }, {3, 9, 15}},
      {[](const auto& d) { return d.skip(2); }, {6, 9, 12, 15}},
      {[](const auto& d) { return d.skip(2).take(4); }, {6, 9, 12, 15}},
      {[](const auto& d) { return d.shard(3, 0).batch(2); }, {0, 9}}};
  for (const std::string& file : {std::string(), path}) {
    for (const auto& [above, expected] : cases) {
      calls = 0;
      std::filesystem::remove(path);
      const auto dataset = above(range(6).map(counted).cache(file));
      for (int pass = 0; pass < 3; ++pass) EXPECT_EQ(values_of(dataset), expected) << dataset.to_string();
      EXPECT_EQ(calls, 6) << dataset.to_string();
    }
  }
  std::filesystem::remove(path);
}

TEST(Caches, ACacheDoesNotRememberAPassWithAnError) {
  const LogSilence quiet;
  int calls = 0;
  const auto once = [&](const at::Tensor& x) {
    if (++calls == 3) throw std::runtime_error("for once");
    return x;
  };
  const auto cached = range(5).map(once).cache();
  EXPECT_EQ(values_of(cached.ignore_errors()), (Values{0, 1, 3, 4}));
  EXPECT_EQ(values_of(cached), counting(5)) << "read again";
  EXPECT_EQ(values_of(cached), counting(5));
  EXPECT_EQ(calls, 10);
}

}  // namespace
}  // namespace lockstep::data
