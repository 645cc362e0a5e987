#include <ATen/Parallel.h>
#include <ATen/ops/full.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/randint.h>
#include <ATen/ops/scalar_tensor.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/zeros.h>
#include <c10/core/GradMode.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <limits>
#include <set>
#include <thread>

#include "lockstep/base/error.h"
#include "tests/support/datasets.h"

namespace lockstep::data {
namespace {

using Values = std::vector<std::int64_t>;

TEST(Stages, TakeSkipShardRepeatOnBothPaths) {
  for (const bool rows : {true, false}) {
    const auto source = [&](std::int64_t n) { return rows ? range(n) : opaque_range(n); };
    EXPECT_EQ(values_of(source(5).take(3)), (Values{0, 1, 2}));
    EXPECT_EQ(values_of(source(5).take(-1)), counting(5));
    EXPECT_EQ(values_of(source(5).take(0)), Values{});
    EXPECT_EQ(values_of(source(5).skip(3)), (Values{3, 4}));
    EXPECT_EQ(values_of(source(5).skip(9)), Values{});
    EXPECT_EQ(values_of(source(5).skip(-1)), Values{});
    EXPECT_EQ(values_of(source(10).shard(3, 0)), (Values{0, 3, 6, 9}));
    EXPECT_EQ(values_of(source(10).shard(3, 2)), (Values{2, 5, 8}));
    EXPECT_EQ(values_of(source(2).shard(3, 2)), Values{});
    EXPECT_EQ(values_of(source(3).repeat(2)), (Values{0, 1, 2, 0, 1, 2}));
    EXPECT_EQ(values_of(source(3).repeat(0)), Values{});
    EXPECT_EQ(values_of(source(3).repeat().take(7)), (Values{0, 1, 2, 0, 1, 2, 0}));
    EXPECT_EQ(values_of(source(0).repeat()), Values{});
    EXPECT_EQ(values_of(source(0).repeat(3)), Values{});
    EXPECT_EQ(rows_of(source(5).repeat(2).batch(4)), (Rows{{0, 1, 2, 3}, {4, 0, 1, 2}, {3, 4}}));
  }
}

TEST(Stages, RangesCountDownToo) {
  EXPECT_EQ(values_of(range(5, 0, -2)), (Values{5, 3, 1}));
  EXPECT_EQ(values_of(range(2, 9, 3)), (Values{2, 5, 8}));
  EXPECT_EQ(values_of(range(3, 3)), Values{});
  EXPECT_THROW(range(0, 3, 0), InvalidArgument);
}

TEST(Stages, ShuffleIsAPermutationThatTheSeedDecides) {
  for (const bool rows : {true, false}) {
    const auto source = rows ? range(100) : opaque_range(100);
    const auto shuffled = source.shuffle(10, {.seed = 7});
    Values first = values_of(shuffled);
    EXPECT_EQ(first, values_of(shuffled));
    EXPECT_NE(first, counting(100));
    for (std::size_t i = 0; i < first.size(); ++i) EXPECT_LT(first[i], static_cast<std::int64_t>(i) + 10);
    EXPECT_NE(first, values_of(source.shuffle(10, {.seed = 8})));
    std::ranges::sort(first);
    EXPECT_EQ(first, counting(100));
  }
  EXPECT_EQ(values_of(range(50).shuffle(20, {.seed = 3})), values_of(opaque_range(50).shuffle(20, {.seed = 3})));
  EXPECT_EQ(values_of(range(9).shuffle(1)), counting(9));
}

TEST(Stages, EveryPlaceIsEquallyLikelyWhenTheBufferHoldsAll) {
  std::vector<int> first_places(5, 0);
  const auto shuffled = range(5).shuffle(5, {.seed = 1});
  for (std::uint64_t epoch = 0; epoch < 2000; ++epoch)
    ++first_places[static_cast<std::size_t>(shuffled.iterator({.epoch = epoch}).next()->item<std::int64_t>())];
  for (const int count : first_places) EXPECT_NEAR(count, 400, 80);
}

TEST(Stages, ShufflesReshuffleUnlessTold) {
  const auto again = values_of(range(20).shuffle(20, {.seed = 7}).repeat(2));
  EXPECT_NE(Values(again.begin(), again.begin() + 20), Values(again.begin() + 20, again.end()));
  const auto same = values_of(range(20).shuffle(20, {.seed = 7, .reshuffle_each_iteration = false}).repeat(2));
  EXPECT_EQ(Values(same.begin(), same.begin() + 20), Values(same.begin() + 20, same.end()));
  const auto dataset = range(20).shuffle(20, {.seed = 7});
  std::set<Values> orders;
  for (int pass = 0; pass < 3; ++pass) {
    Values values;
    for (const auto& x : dataset) values.push_back(x.item<std::int64_t>());
    orders.insert(values);
  }
  EXPECT_EQ(orders.size(), 3u) << "each loop over a dataset is a pass of its own";
}

TEST(Stages, UnseededShufflesFollowTheJobSeedAndTheirPlace) {
  const auto order = [](const Dataset<at::Tensor>& dataset, std::uint64_t seed) {
    return rows_of(dataset.iterator({.job_seed = seed, .epoch = 0}));
  };
  const auto shuffled = range(30).shuffle(30);
  EXPECT_EQ(order(shuffled, 1), order(shuffled, 1));
  EXPECT_NE(order(shuffled, 1), order(shuffled, 2));
  EXPECT_EQ(order(shuffled.prefetch(2), 1), order(shuffled, 1)) << "a prefetch changes no shuffle";
  EXPECT_EQ(order(shuffled.batch(1), 1), order(shuffled, 1));
  auto pairs = zip(shuffled, shuffled).iterator({.job_seed = 1, .epoch = 0});
  Values left, right;
  while (auto pair = pairs.next()) {
    left.push_back(pair->first.item<std::int64_t>());
    right.push_back(pair->second.item<std::int64_t>());
  }
  EXPECT_NE(left, right) << "two shuffles in one pipeline are two orders";
}

TEST(Stages, FilterTakeWhileUnique) {
  const auto even = [](const at::Tensor& x) { return x.item<std::int64_t>() % 2 == 0; };
  EXPECT_EQ(values_of(range(7).filter(even)), (Values{0, 2, 4, 6}));
  EXPECT_EQ(values_of(range(7).filter([](const at::Tensor& x) { return x > 4; })), (Values{5, 6}));
  EXPECT_EQ(values_of(range(7).take_while([](const at::Tensor& x) { return x < 3; })), (Values{0, 1, 2}));
  EXPECT_EQ(values_of(range(7).map([](const at::Tensor& x) { return x.remainder(3); }).unique()), (Values{0, 1, 2}));
}

TEST(Stages, FlatMapAndInterleaveInTheOrderOfTensorFlow) {
  const auto times = [](const at::Tensor& x) {
    return range(x.item<std::int64_t>() + 1).map([x](const at::Tensor&) { return x; });
  };
  EXPECT_EQ(values_of(range(4).flat_map(times)), (Values{0, 1, 1, 2, 2, 2, 3, 3, 3, 3}));
  const auto six = [](const at::Tensor& x) { return range(6).map([x](const at::Tensor&) { return x; }); };
  // The example of tf.data's documentation: five elements, each six times.
  EXPECT_EQ(values_of(range(1, 6).interleave(six, {.cycle_length = 2, .block_length = 4})),
            (Values{1, 1, 1, 1, 2, 2, 2, 2, 1, 1, 2, 2, 3, 3, 3, 3, 4, 4, 4, 4, 3, 3, 4, 4, 5, 5, 5, 5, 5, 5}));
  EXPECT_EQ(values_of(range(1, 6).interleave(six, {.cycle_length = 2, .block_length = 4, .parallel_calls = 2})),
            values_of(range(1, 6).interleave(six, {.cycle_length = 2, .block_length = 4})));
}

TEST(Stages, ZipConcatenateEnumerateScan) {
  const auto pairs = zip(range(3), range(10, 20)).to_vector();
  ASSERT_EQ(pairs.size(), 3u);
  EXPECT_EQ(pairs[2].second.item<std::int64_t>(), 12);
  EXPECT_EQ(zip(range(3), range(4), range(5)).to_vector().size(), 3u);
  EXPECT_EQ(values_of(range(2).concatenate(range(5, 7))), (Values{0, 1, 5, 6}));
  const auto numbered = opaque_range(3).enumerate(5).to_vector();
  EXPECT_EQ(numbered[2].first.item<std::int64_t>(), 7);
  const auto sums = range(5).scan(at::zeros({}, at::kLong), [](const at::Tensor& sum, const at::Tensor& x) {
    return std::pair{sum + x, sum + x};
  });
  EXPECT_EQ(values_of(sums), (Values{0, 1, 3, 6, 10}));
}

TEST(Stages, WindowsAreDatasets) {
  const auto batches = [](const Dataset<at::Tensor>& window) { return window.batch(10); };
  EXPECT_EQ(rows_of(range(7).window(3).flat_map(batches)), (Rows{{0, 1, 2}, {3, 4, 5}, {6}}));
  EXPECT_EQ(rows_of(range(7).window(3, {.shift = 2, .stride = 2, .drop_remainder = true}).flat_map(batches)),
            (Rows{{0, 2, 4}, {2, 4, 6}}));
  EXPECT_EQ(rows_of(range(7).window(2, {.shift = 4}).flat_map(batches)), (Rows{{0, 1}, {4, 5}}));
  EXPECT_EQ(range(7).window(2, {.shift = 4}).cardinality(), Cardinality(2));
}

TEST(Stages, PaddedBatchesAndUnbatch) {
  const auto rows = range(4).map(
      [](const at::Tensor& x) { return at::full({x.item<std::int64_t>()}, x.item<std::int64_t>(), at::kLong); });
  const auto batches = rows.padded_batch(3).to_vector();
  EXPECT_EQ(integers(batches[0]), (Values{0, 0, 1, 0, 2, 2}));
  EXPECT_EQ(batches[1].sizes(), at::IntArrayRef({1, 3}));
  const auto wide = rows.padded_batch(4, {.padded_shapes = {{{5}}}, .padding_values = {-1}}).to_vector();
  EXPECT_EQ(integers(wide[0]), (Values{-1, -1, -1, -1, -1, 1, -1, -1, -1, -1, 2, 2, -1, -1, -1, 3, 3, 3, -1, -1}));
  EXPECT_THROW(rows.padded_batch(4, {.padded_shapes = {{{2}}}}).to_vector(), DataLoss);
  EXPECT_EQ(values_of(range(7).batch(3).unbatch()), counting(7));
  EXPECT_EQ(range(7).batch(3, {.drop_remainder = true}).unbatch().cardinality(), Cardinality(6));
}

TEST(Stages, RebatchCutsAcrossBatches) {
  EXPECT_EQ(rows_of(range(8).batch(4).rebatch(3)), (Rows{{0, 1, 2}, {3, 4, 5}, {6, 7}}));
  EXPECT_EQ(rows_of(range(8).batch(3).rebatch({2, 1}, true)), (Rows{{0, 1}, {2}, {3, 4}, {5}, {6, 7}}));
}

TEST(Stages, RebatchOfNothingStartsWithItsEmptyBatchIfRowsAreKnown) {
  const auto known = range(0).batch(2).rebatch({0, 2});
  EXPECT_EQ(rows_of(known), (Rows{{}}));
  EXPECT_TRUE(known.cardinality().is_unknown());
  const auto unknown = opaque_range(0).batch(2).rebatch({0, 2});
  EXPECT_TRUE(unknown.cardinality().is_unknown());
  const std::string error = error_of([&] { unknown.iterator().next(); });
  EXPECT_TRUE(contains(error, "its rows are unknown") && contains(error, "sizes of 0")) << error;
  EXPECT_EQ(places_of(unknown.iterator(), 5).size(), 1u) << "the end comes behind it";
  EXPECT_EQ(unknown.iterator().skip(5), 1);
  EXPECT_EQ(rows_of(opaque_range(3).batch(2).rebatch({0, 2})), (Rows{{}, {0, 1}, {}, {2}}));
  EXPECT_EQ(rows_of(opaque_range(0).batch(2).rebatch({2, 0})), Rows{});
}

TEST(Stages, SamplingTakesEveryElementOfEachDatasetOnce) {
  const auto mixed = sample_from_datasets<at::Tensor>({range(50), range(100, 150)}, {.weights = {0.8, 0.2}, .seed = 4});
  Values values = values_of(mixed);
  EXPECT_EQ(values, values_of(mixed));
  EXPECT_LT(std::ranges::count_if(values.begin(), values.begin() + 25, [](auto x) { return x >= 100; }), 13);
  std::ranges::sort(values);
  EXPECT_EQ(values.size(), 100u);
  EXPECT_EQ(std::set<std::int64_t>(values.begin(), values.end()).size(), 100u);
  EXPECT_EQ(mixed.cardinality(), Cardinality(100));
  EXPECT_EQ(sample_from_datasets({range(3), range(4)}).cardinality(), Cardinality(7));
}

TEST(Stages, ParallelMapsKeepTheOrderWithAnyNumberOfThreads) {
  const auto slow_first = [](const at::Tensor& x) {
    for (int i = 0; x.item<std::int64_t>() % 16 == 0 && i < 200; ++i) std::this_thread::yield();
    return x * 2;
  };
  Values expected;
  for (std::int64_t i = 0; i < 500; ++i) expected.push_back(2 * i);
  for (const int calls : {1, 2, 5}) {
    EXPECT_EQ(values_of(range(500).map(slow_first, {.parallel_calls = calls})), expected);
    EXPECT_EQ(values_of(opaque_range(500).map(slow_first, {.parallel_calls = calls})), expected);
    Values any = values_of(opaque_range(500).map(slow_first, {.parallel_calls = calls, .ordered = false}));
    std::ranges::sort(any);
    EXPECT_EQ(any, expected);
  }
}

TEST(Stages, BatchesOfParallelMapsAreThoseOfPlainOnes) {
  const auto picky = [](const at::Tensor& x) {
    if (x.item<std::int64_t>() == 77) throw std::runtime_error("seven");
    return at::stack({x, x * 2});
  };
  for (const bool rows : {true, false}) {
    const auto source = rows ? range(200).shuffle(50, {.seed = 1}) : opaque_range(200);
    for (const std::int64_t size : {1, 7, 64, 500}) {
      for (const bool drop : {true, false}) {
        const auto plain = source.map(picky).batch(size, {.drop_remainder = drop}).ignore_errors();
        const auto parallel = source.map(picky, {.parallel_calls = 3}).batch(size, {.drop_remainder = drop});
        EXPECT_EQ(rows_of(parallel.ignore_errors()), rows_of(plain)) << size;
        EXPECT_EQ(rows_of(parallel.prefetch(2).ignore_errors()), rows_of(plain)) << size;
      }
    }
  }
  const auto ragged = [](const at::Tensor& x) { return at::zeros({x.item<std::int64_t>()}); };
  EXPECT_THROW(range(5).map(ragged, {.parallel_calls = 2}).batch(4).to_vector(), InvalidArgument);
  const auto words = [](const at::Tensor& x) { return std::pair{std::to_string(x.item<std::int64_t>()), x}; };
  const auto batches = range(5).map(words, {.parallel_calls = 2}).batch(3).to_vector();
  EXPECT_EQ(batches.at(1).first, (Strings{"3", "4"}));
}

TEST(Stages, WorkersComputeWithoutGradientsOnOneThread) {
  const int before = at::get_num_threads();
  const auto facts =
      range(8).map([](const at::Tensor&) { return at::get_num_threads() + (c10::GradMode::is_enabled() ? 100 : 0); },
                   {.parallel_calls = 2});
  for (const int fact : facts) EXPECT_EQ(fact, 1);
  EXPECT_EQ(at::get_num_threads(), before);
  std::thread([&] { EXPECT_EQ(at::get_num_threads(), before); }).join();
}

TEST(Stages, LeavingInTheMiddleNeverHangs) {
  const auto endless = range(1000).repeat().map([](const at::Tensor& x) { return x + 1; }, {.parallel_calls = 3});
  for (int round = 0; round < 30; ++round) {
    auto it = endless.prefetch(3).batch(4).prefetch(2).iterator();
    for (int i = 0; i < round % 5; ++i) it.next();
  }
  for (int round = 0; round < 10; ++round) {
    auto it = range(50).interleave([](const at::Tensor&) { return range(1000); }, {.parallel_calls = 2}).iterator();
    for (int i = 0; i < round; ++i) it.next();
    auto loose = endless.map([](at::Tensor x) { return x; }, {.parallel_calls = 2, .ordered = false}).iterator();
    for (int i = 0; i < round; ++i) loose.next();
  }
}

TEST(Stages, RandomNumbersOfRowsDoNotDependOnThreads) {
  const auto noisy = [](const Dataset<at::Tensor>& source, int calls) {
    return source
        .map_with_random(
            [](const at::Tensor& x, RowRandom& random) {
              return x * 1000 + random.below(1000) + at::randint(0, 10, {}, random.generator(), at::kLong) * 0;
            },
            {.parallel_calls = calls, .seed = 5})
        .repeat(2);
  };
  const Values plain = values_of(noisy(range(200), 0));
  EXPECT_EQ(plain, values_of(noisy(range(200), 3)));
  EXPECT_EQ(plain, values_of(noisy(opaque_range(200), 2)));
  EXPECT_NE(Values(plain.begin(), plain.begin() + 200), Values(plain.begin() + 200, plain.end()))
      << "each pass has its own";
  auto it = noisy(range(200), 2).iterator();
  it.skip(150);
  EXPECT_EQ(it.next()->item<std::int64_t>(), plain[150]) << "skipped rows count";
}

TEST(Stages, MapsWithRandomNumbersTakePairsInParts) {
  const auto sums =
      zip(range(5), range(10, 15)).map_with_random([](const at::Tensor& a, const at::Tensor& b, RowRandom& random) {
        return a + b + random.below(1);
      });
  EXPECT_EQ(values_of(sums), (Values{10, 12, 14, 16, 18}));
  using Pair = std::pair<at::Tensor, at::Tensor>;
  EXPECT_EQ(values_of(zip(range(2), range(2)).map_with_random([](Pair pair, RowRandom&) { return pair.first; })),
            (Values{0, 1}));
}

TEST(Stages, BadNumbersAreRefusedAtOnce) {
  EXPECT_THROW(range(3).batch(0), InvalidArgument);
  EXPECT_THROW(range(3).shuffle(0), InvalidArgument);
  EXPECT_THROW(range(3).shard(2, 2), InvalidArgument);
  EXPECT_THROW(range(3).prefetch(-2), InvalidArgument);
  EXPECT_THROW(range(3).window(0), InvalidArgument);
  EXPECT_THROW(range(3).repeat(-2), InvalidArgument);
  EXPECT_THROW(sample_from_datasets<at::Tensor>({range(3)}, {.weights = {1, 2}}), InvalidArgument);
  EXPECT_THROW(range(3).shard(kShardHint, kShardHint).to_vector(), FailedPrecondition);
  EXPECT_THROW(from_tensor_slices(std::pair{at::zeros({3}), at::zeros({4})}), InvalidArgument);
  EXPECT_THROW(from_tensor_slices(at::zeros({})), InvalidArgument);
  EXPECT_THROW(from_tensor_slices(std::vector<at::Tensor>{at::zeros({3}), at::zeros({4})}), InvalidArgument);
}

TEST(Stages, APredicateMustAnswerYesOrNo) {
  const auto half = range(3).filter([](const at::Tensor&) { return at::scalar_tensor(0.5); });
  EXPECT_THROW(half.to_vector(), InvalidArgument);
}

TEST(Stages, ResultsOfAScanAreNotItsState) {
  const auto ten_times = [](at::Tensor x) { return x.mul_(10); };
  const auto sums = range(5).scan(at::zeros({}, at::kLong), [](const at::Tensor& sum, const at::Tensor& x) {
    const at::Tensor next = sum + x;
    return std::pair{next, next};
  });
  EXPECT_EQ(values_of(sums.map(ten_times)), (Values{0, 10, 30, 60, 100}));
  const auto in_place = range(5).scan(at::zeros({}, at::kLong), [](at::Tensor sum, const at::Tensor& x) {
    sum.add_(x);
    if (x.item<std::int64_t>() == 3) throw std::runtime_error("after it wrote");
    return std::pair{sum, sum};
  });
  Values values;
  for (const at::Tensor& sum : in_place.ignore_errors().to_vector()) values.push_back(sum.item<std::int64_t>());
  EXPECT_EQ(values, (Values{0, 1, 3, 7}));
}

TEST(Stages, UniqueTellsStructuresApart) {
  using Named = std::map<std::string, at::Tensor>;
  const auto named = range(4).map([](const at::Tensor& x) {
    return Named{{x.item<std::int64_t>() % 2 == 0 ? "a" : "b", at::ones({})}};
  });
  EXPECT_EQ(named.unique().to_vector().size(), 2u);
  using Nested = std::vector<std::vector<at::Tensor>>;
  const auto nested = range(4).map([](const at::Tensor& x) {
    const at::Tensor one = at::ones({});
    return x.item<std::int64_t>() % 2 == 0 ? Nested{{one, one}, {one}} : Nested{{one}, {one, one}};
  });
  EXPECT_EQ(nested.unique().to_vector().size(), 2u);
}

TEST(Stages, APositionInASampleBelongsToItsWeightsAndSeed) {
  const auto sample = [](std::vector<double> weights, std::uint64_t seed, bool stop) {
    return sample_from_datasets<at::Tensor>(
        {range(9), range(20, 29)}, {.weights = std::move(weights), .seed = seed, .stop_on_empty_dataset = stop});
  };
  auto it = sample({0.9, 0.1}, 1, false).iterator();
  it.next();
  const IteratorState state = it.state();
  EXPECT_TRUE(resume(sample({0.9, 0.1}, 1, false), state).next());
  EXPECT_THROW(resume(sample({0.1, 0.9}, 1, false), state), InvalidArgument);
  EXPECT_THROW(resume(sample({0.9, 0.1}, 7, false), state), InvalidArgument);
  EXPECT_THROW(resume(sample({0.9, 0.1}, 1, true), state), InvalidArgument);
  EXPECT_EQ(sample({0.9, 0.1}, 1, true).stage()->describe(),
            "sample_from_datasets(weights 0.9, 0.1, seed 1, stops with the first)");
}

TEST(Stages, BatchesThatAreTooLargeAreRefusedWithTheLimit) {
  for (const auto& refused : {error_of([] { range(3).batch(std::int64_t{1} << 41); }),
                              error_of([] { range(3).padded_batch(std::int64_t{1} << 41); })})
    EXPECT_TRUE(contains(refused, "from 1 to 1099511627776, got 2199023255552")) << refused;
}

TEST(Stages, SkippingMoreThanThereCanBeIsTheEnd) {
  constexpr auto kAll = std::numeric_limits<std::int64_t>::max();
  EXPECT_EQ(values_of(range(10).shard(2, 0).skip(kAll)), Values{});
  EXPECT_EQ(values_of(opaque_range(10).shard(2, 1).skip(kAll)), Values{});
  EXPECT_TRUE(range(10).padded_batch(4).skip(kAll).to_vector().empty());
  auto iterator = range(10).iterator();
  EXPECT_THROW(iterator.skip(-3), InvalidArgument);
}

TEST(Stages, AMapMayWriteIntoWhatASourceHandsOut) {
  const auto given = at::zeros({}, at::kLong);
  const auto ones = from_tensors(given).repeat(3).map([](at::Tensor x) { return x.add_(1); });
  EXPECT_EQ(values_of(ones), (Values{1, 1, 1}));
  EXPECT_EQ(values_of(ones), (Values{1, 1, 1}));
  EXPECT_EQ(given.item<std::int64_t>(), 0);
}

TEST(Stages, TheNextPassAfterAResumeIsTheOneBehindIt) {
  const auto order = [] { return range(8).shuffle(8, {.seed = 5}).batch(8); };
  auto whole = order();
  std::vector<Values> passes;
  for (int pass = 0; pass < 3; ++pass) passes.push_back(integers(whole.to_vector().front()));
  auto interrupted = order();
  interrupted.to_vector();
  auto second = interrupted.iterator();
  const auto state = second.state();
  auto resumed = order();
  EXPECT_EQ(integers(*resume(resumed, state).next()), passes[1]);
  EXPECT_EQ(integers(resumed.to_vector().front()), passes[2]);
}

TEST(Stages, DatasetsMadeAnewForEachEpochReshuffle) {
  const auto shuffled = range(20).shuffle(20, {.seed = 7});
  const auto same = [](at::Tensor x) { return x; };
  std::set<Rows> orders;
  for (int epoch = 0; epoch < 3; ++epoch) {
    orders.insert(rows_of(shuffled.map(same).iterator()));
    orders.insert(rows_of(zip(range(20), shuffled).map([](const at::Tensor&, at::Tensor x) { return x; }).iterator()));
    orders.insert(rows_of(shuffled.iterator()));
  }
  EXPECT_EQ(orders.size(), 9u);
}

}  // namespace
}  // namespace lockstep::data
