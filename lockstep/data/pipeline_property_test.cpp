#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <random>

#include "lockstep/data/pipeline_test_support.h"

namespace lockstep::data {
namespace {

/// What a dataset of scalars holds at each place: a number, or nothing where its computation fails.
using Numbers = std::vector<std::optional<std::int64_t>>;

/// Puts a stage on a dataset; where it has threads, that many.
using StageMaker = std::function<Dataset<at::Tensor>(const Dataset<at::Tensor>&, int threads)>;

std::int64_t number(const at::Tensor& x) { return x.item<std::int64_t>(); }

/// A random pipeline, and what it must give: a list of places, to which each stage does the obvious.
class RandomPipeline {
 public:
  RandomPipeline(std::uint32_t seed, bool failing) : random_(seed), failing_(failing) {
    const std::int64_t size = pick(0, 30);
    stages_.push_back([size](const auto&, int) { return range(size); });
    for (std::int64_t i = 0; i < size; ++i) expected_.emplace_back(i);
    const std::int64_t count = pick(1, 6);
    const std::int64_t failure = failing ? pick(0, count - 1) : -1;
    for (std::int64_t i = 0; i < count; ++i) {
      add_stage();
      if (i == failure) add_failing_map();
    }
    batch_ = pick(1, 7);
  }

  Dataset<at::Tensor> build(int threads) const {
    Dataset<at::Tensor> dataset;
    for (const StageMaker& stage : stages_) dataset = stage(dataset, threads);
    return dataset;
  }

  void check() {
    const Dataset<at::Tensor> plain = build(0);
    SCOPED_TRACE(plain.to_string());
    const Places expected = as_places(expected_);
    const Places batches = batched(expected_);
    ASSERT_EQ(places_of(start(plain)), expected);
    if (plain.cardinality().is_known()) {
      EXPECT_EQ(plain.cardinality().value(), static_cast<std::int64_t>(expected.size()));
    }
    for (const int threads : {1, 2, 4}) {
      SCOPED_TRACE(testing::Message() << threads << " threads");
      ASSERT_EQ(places_of(start(build(threads))), expected);
      ASSERT_EQ(places_of(start(build(threads).batch(batch_))), batches);
      const std::int64_t jump = pick(0, static_cast<std::int64_t>(expected.size()) + 2);
      const std::int64_t there = std::min<std::int64_t>(jump, static_cast<std::int64_t>(expected.size()));
      auto it = start(build(threads));
      EXPECT_EQ(it.skip(jump), there);
      EXPECT_EQ(
          places_of(std::move(it), 2),
          Places(expected.begin() + there,
                 expected.begin() + std::min<std::int64_t>(there + 2, static_cast<std::int64_t>(expected.size()))));
      expect_exact_positions([&] { return build(threads).batch(batch_); }, "batches", 8);
      if (failing_) expect_exact_positions([&] { return build(threads).ignore_errors().batch(batch_); }, "ignored", 8);
    }
  }

 private:
  static DatasetIterator<at::Tensor> start(const Dataset<at::Tensor>& dataset) {
    return dataset.iterate({.job_seed = 3, .epoch = 1});
  }

  std::int64_t pick(std::int64_t low, std::int64_t high) {
    return std::uniform_int_distribution<std::int64_t>(low, high)(random_);
  }

  static Places as_places(const Numbers& numbers) {
    Places places;
    for (const auto& each : numbers) each ? places.emplace_back(std::vector{*each}) : places.emplace_back(std::nullopt);
    return places;
  }

  /// A batch with a failed row fails as a whole.
  Places batched(const Numbers& numbers) const {
    Places places;
    for (std::size_t i = 0; i < numbers.size(); i += static_cast<std::size_t>(batch_)) {
      places.emplace_back(std::vector<std::int64_t>());
      for (std::size_t k = i; k < std::min(numbers.size(), i + static_cast<std::size_t>(batch_)); ++k) {
        if (!numbers[k]) places.back() = std::nullopt;
        if (places.back()) places.back()->push_back(*numbers[k]);
      }
    }
    return places;
  }

  /// `f` of every place that did not fail.
  template <class F>
  void change(F f) {
    for (std::size_t i = 0; i < expected_.size(); ++i)
      if (expected_[i]) expected_[i] = f(*expected_[i], static_cast<std::int64_t>(i));
  }

  /// Groups of `size` places: those with a failed one become one failed place.
  void fail_in_groups(std::int64_t size) {
    Numbers result;
    for (auto at = expected_.begin(); at != expected_.end();) {
      const auto end = at + std::min<std::ptrdiff_t>(size, expected_.end() - at);
      if (std::find(at, end, std::nullopt) == end)
        result.insert(result.end(), at, end);
      else
        result.emplace_back(std::nullopt);
      at = end;
    }
    expected_ = result;
  }

  void add_failing_map() {
    const std::int64_t divisor = pick(2, 6), rest = pick(0, divisor - 1);
    stages_.push_back([=](const auto& d, int threads) {
      return d.map(
          [=](const at::Tensor& x) {
            if (number(x) % divisor == rest) throw std::runtime_error("picky");
            return x;
          },
          {.parallel_calls = threads});
    });
    for (auto& each : expected_)
      if (each && *each % divisor == rest) each = std::nullopt;
  }

  void add_stage() {
    const auto size = static_cast<std::int64_t>(expected_.size());
    Numbers result;
    const auto add = [&](StageMaker stage) { stages_.push_back(std::move(stage)); };
    switch (pick(0, 17)) {
      case 0: {
        const std::int64_t count = pick(0, 25);
        add([=](const auto& d, int) { return d.take(count); });
        expected_.resize(static_cast<std::size_t>(std::min(count, size)));
        return;
      }
      case 1: {
        const std::int64_t count = pick(0, 8);
        add([=](const auto& d, int) { return d.skip(count); });
        expected_.erase(expected_.begin(), expected_.begin() + std::min(count, size));
        return;
      }
      case 2: {
        const std::int64_t shards = pick(1, 4), index = pick(0, shards - 1);
        add([=](const auto& d, int) { return d.shard(shards, index); });
        for (std::int64_t i = index; i < size; i += shards) result.push_back(expected_[static_cast<std::size_t>(i)]);
        break;
      }
      case 3: {
        if (size > 40) return;
        const std::int64_t count = pick(0, 3);
        add([=](const auto& d, int) { return d.repeat(count); });
        if (varies_) return take_over();
        for (std::int64_t i = 0; i < count; ++i) result.insert(result.end(), expected_.begin(), expected_.end());
        break;
      }
      case 4:
        add([](const auto& d, int threads) {
          return d.map([](const at::Tensor& x) { return x + 1; }, {.parallel_calls = threads});
        });
        return change([](std::int64_t x, std::int64_t) { return x + 1; });
      case 5:
        add([](const auto& d, int) { return d.filter([](const at::Tensor& x) { return number(x) % 3 != 0; }); });
        for (const auto& each : expected_)
          if (!each || *each % 3 != 0) result.push_back(each);
        break;
      case 6: {
        const std::int64_t rows = pick(1, 4);
        add([=](const auto& d, int) { return d.batch(rows).unbatch(); });
        return fail_in_groups(rows);
      }
      case 7: {
        const std::int64_t ahead = pick(0, 3);
        add([=](const auto& d, int) { return d.prefetch(ahead); });
        return;
      }
      case 8:
        add([](const auto& d, int) { return d.concatenate(range(3)); });
        for (std::int64_t i = 0; i < 3; ++i) expected_.emplace_back(i);
        return;
      case 9:
        if (size > 40) return;
        add([](const auto& d, int) {
          return d.flat_map([](const at::Tensor& x) { return from_tensors(x).repeat(2); });
        });
        for (const auto& each : expected_) result.insert(result.end(), each ? 2 : 1, each);
        break;
      case 10:
        add([](const auto& d, int) { return d.cache(); });
        if (varies_) take_over();
        return;
      case 11: add([](const auto& d, int) { return d.shuffle(1); }); return;
      case 12: {
        const std::int64_t rows = pick(1, 4);
        add([=](const auto& d, int) {
          return d.window(rows).flat_map([](const Dataset<at::Tensor>& window) { return window; });
        });
        return fail_in_groups(rows);
      }
      case 13:
        add([](const auto& d, int) {
          return d.enumerate().map([](const at::Tensor& i, const at::Tensor& x) { return x + i; });
        });
        return change([](std::int64_t x, std::int64_t i) { return x + i; });
      case 14: {
        const std::int64_t other = pick(0, 40);
        add([=](const auto& d, int) {
          return zip(d, range(other)).map([](const at::Tensor& x, const at::Tensor&) { return x; });
        });
        expected_.resize(static_cast<std::size_t>(std::min(other, size)));
        return;
      }
      case 15:
        add([](const auto& d, int) { return d.ignore_errors(); });
        std::erase(expected_, std::nullopt);
        return;
      case 16:
        add([](const auto& d, int threads) {
          return d.map_with_random([](const at::Tensor& x, RowRandom& random) { return x + random.below(50); },
                                   {.parallel_calls = threads, .seed = 8});
        });
        varies_ = true;
        return take_over();
      default: {
        const std::int64_t buffer = pick(2, 10);
        const auto seed = static_cast<std::uint64_t>(pick(0, 99));
        add([=](const auto& d, int) { return d.shuffle(buffer, {.seed = seed}); });
        auto before = expected_;
        take_over();
        auto after = expected_;
        std::ranges::sort(before);
        std::ranges::sort(after);
        EXPECT_EQ(after, before);
        varies_ = true;
        return;
      }
    }
    expected_ = result;
  }

  /// Where there is no plain reference, what the stages so far give without threads is one.
  void take_over() {
    expected_.clear();
    for (const auto& place : places_of(start(build(0))))
      expected_.push_back(place ? std::optional(place->front()) : std::nullopt);
  }

  std::mt19937 random_;
  bool failing_;
  bool varies_ = false;  ///< from pass to pass
  std::vector<StageMaker> stages_;
  Numbers expected_;
  std::int64_t batch_ = 1;
};

void check_random_pipelines(bool failing, std::uint32_t count) {
  const LogSilence quiet;
  for (std::uint32_t seed = 0; seed < count && !testing::Test::HasFailure(); ++seed) {
    SCOPED_TRACE(testing::Message() << "seed " << seed);
    RandomPipeline(seed, failing).check();
  }
}

TEST(PipelineProperties, RandomPipelinesMatchAPlainReference) { check_random_pipelines(false, 50); }
TEST(PipelineProperties, RandomPipelinesWithFailingMapsDoToo) { check_random_pipelines(true, 50); }

}  // namespace
}  // namespace lockstep::data
