#include <ATen/ops/zeros.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <functional>
#include <random>

#include "tests/support/datasets.h"

namespace lockstep::data {
namespace {

/// The value of a dataset of scalars at each place: a number, or nothing if its computation fails.
using Numbers = std::vector<std::optional<std::int64_t>>;

/// Adds a stage to a dataset, with this many threads if it has any.
using StageMaker = std::function<Dataset<at::Tensor>(const Dataset<at::Tensor>&, int threads)>;

std::int64_t number(const at::Tensor& x) { return x.item<std::int64_t>(); }

/// A random pipeline and its expected result: a list of places, to which each stage does the obvious.
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
      // A failed batch is one place of unbatch's output.
      if (!failing_ || plain.stage()->reliability() == Reliability::Certain) {
        EXPECT_EQ(plain.cardinality().value(), static_cast<std::int64_t>(expected.size()));
      }
    }
    for (const int threads : {1, 2, 4}) {
      SCOPED_TRACE(testing::Message() << threads << " threads");
      ASSERT_EQ(places_of(start(build(threads))), expected);
      ASSERT_EQ(places_of(start(build(threads).batch(batch_))), batches);
    }
    // Every place, reached in each way, with varying numbers of threads.
    auto threads = [turn = 0]() mutable {
      return std::array{0, 2, 0, 0, 1, 0, 4, 0}[static_cast<std::size_t>(turn++ % 8)];
    };
    const auto size = static_cast<std::int64_t>(expected.size());
    for (std::int64_t jump = 0; jump <= size + 1; ++jump) {
      auto it = start(build(threads()));
      ASSERT_EQ(it.skip(jump), std::min(jump, size));
      const auto from = expected.begin() + std::min(jump, size);
      ASSERT_EQ(places_of(std::move(it), 2), Places(from, from + std::min<std::ptrdiff_t>(2, expected.end() - from)))
          << "after skipping " << jump;
    }
    using Above = std::function<Dataset<at::Tensor>(const Dataset<at::Tensor>&)>;
    std::vector<std::pair<std::string, Above>> above = {
        {"rows", [](const auto& d) { return d; }},
        {"batches", [&](const auto& d) { return d.batch(batch_); }},
        {"full batches", [&](const auto& d) { return d.batch(batch_, {.drop_remainder = true}).prefetch(1); }}};
    if (failing_) above.emplace_back("ignored", [&](const auto& d) { return d.ignore_errors().batch(batch_); });
    for (const auto& [name, put_above] : above) {
      const auto any = [&] { return put_above(build(threads())); };
      expect_exact_positions(any, name, 1000, any);
    }
  }

 private:
  static DatasetIterator<at::Tensor> start(const Dataset<at::Tensor>& dataset) {
    return dataset.iterator({.job_seed = 3, .epoch = 1});
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

  /// Applies `f` to every place that did not fail.
  template <class F>
  void change(F f) {
    for (std::size_t i = 0; i < expected_.size(); ++i)
      if (expected_[i]) expected_[i] = f(*expected_[i], static_cast<std::int64_t>(i));
  }

  /// Groups of `size` places: those with a failed one become one failed place. `drop`: without a short last one.
  void fail_in_groups(std::int64_t size, bool drop = false) {
    Numbers result;
    if (drop) expected_.resize(expected_.size() - expected_.size() % static_cast<std::size_t>(size));
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
    switch (pick(0, 23)) {
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
        const bool drop = pick(0, 1) == 1, padded = pick(0, 1) == 1;
        if (padded)
          add([=](const auto& d, int) { return d.padded_batch(rows, {.drop_remainder = drop}).unbatch(); });
        else
          add([=](const auto& d, int) { return d.batch(rows, {.drop_remainder = drop}).unbatch(); });
        return fail_in_groups(rows, drop);
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
      case 17: {
        // A spec with the number of rows of a batch, so that unbatch has a cardinality.
        const std::int64_t rows = pick(1, 4);
        add([=](const auto& d, int threads) {
          const auto spec = [=](const ElementSpec&) {
            return ElementSpec{{{ComponentSpec::tensor(at::kLong, PartialShape({rows}))}}};
          };
          return d.batch(rows, {.drop_remainder = true})
              .map([](const at::Tensor& x) { return x * 1; }, {.parallel_calls = threads, .spec = spec})
              .unbatch();
        });
        return fail_in_groups(rows, true);
      }
      case 18: {
        const std::int64_t rows = pick(1, 4), again = pick(1, 5);
        const bool drop = pick(0, 1) == 1;
        add([=](const auto& d, int) { return d.batch(rows).rebatch(again, drop).unbatch(); });
        return take_over();
      }
      case 19: {
        if (size > 30) return;
        const auto cycle = static_cast<int>(pick(1, 3));
        const std::int64_t block = pick(1, 2);
        add([=](const auto& d, int threads) {
          return d.interleave(
              [](const at::Tensor& x) {
                return range(number(x) % 4).map([x](const at::Tensor& i) {
                  if (number(x) % 11 == 5 && number(i) == 0) throw std::runtime_error("inside");
                  return x + i;
                });
              },
              {.cycle_length = cycle, .block_length = block, .parallel_calls = threads});
        });
        return take_over();
      }
      case 20: {
        const std::int64_t other = pick(0, 12);
        add([=](const auto& d, int) {
          return sample_from_datasets<at::Tensor>({d, range(other)}, {.weights = {2, 1}, .seed = 5});
        });
        varies_ = true;
        return take_over();
      }
      case 21: {
        // Read twice in a pass: the same elements on both sides.
        if (size > 40) return;
        add([](const auto& d, int) {
          const auto kept = d.cache();
          return zip(kept, kept.shuffle(3, {.seed = 9})).map([](const at::Tensor& a, const at::Tensor& b) {
            return a * 2 + b;
          });
        });
        varies_ = true;
        return take_over();
      }
      case 22:
        add([](const auto& d, int) {
          return d.scan(at::zeros({}, at::kLong), [](const at::Tensor& sum, const at::Tensor& x) {
            return std::pair{(sum + x) % 97, (sum + x) % 97};
          });
        });
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

  /// Without a plain reference, the output of the stages so far without threads is used.
  void take_over() {
    expected_.clear();
    for (const auto& place : places_of(start(build(0))))
      expected_.push_back(place ? std::optional(place->front()) : std::nullopt);
  }

  std::mt19937 random_;
  bool failing_;
  bool varies_ = false;  ///< between passes
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
