#include <gtest/gtest.h>

#include <functional>
#include <random>

#include "lockstep/base/error.h"
#include "lockstep/data/pipeline_test_support.h"

namespace lockstep::data {
namespace {

/// Saves after every element and goes on from there in a new pipeline: both must give the same rest.
void expect_exact_positions(const std::function<Dataset<at::Tensor>()>& build, const std::string& name,
                            std::int64_t limit = 1000) {
  const IterationContext context{.job_seed = 11, .epoch = 3};
  Rows all;
  auto whole = build().iterate(context);
  while (static_cast<std::int64_t>(all.size()) < limit) {
    auto element = whole.next();
    if (!element) break;
    all.push_back(integers(*element));
  }
  auto reader = build().iterate(context);
  for (std::size_t position = 0; position <= all.size(); ++position) {
    const std::string saved = reader.save().serialize();
    ASSERT_LT(saved.size(), 2000u) << "a state holds positions, never rows";
    auto resumed = build().resume(IteratorState::parse(saved));
    EXPECT_EQ(resumed.consumed(), static_cast<std::int64_t>(position));
    for (std::size_t i = position; i < all.size(); ++i) {
      const auto element = resumed.next();
      ASSERT_TRUE(element) << name << ": resumed at " << position << ", ends at " << i;
      ASSERT_EQ(integers(*element), all[i]) << name << ": resumed at " << position << ", differs at " << i;
      if (i == position + 2) {  // saved once more after resuming: positions do not drift
        auto twice = build().resume(IteratorState::parse(resumed.save().serialize()));
        const auto after = twice.next();
        if (i + 1 < all.size() || static_cast<std::int64_t>(all.size()) < limit) {
          ASSERT_EQ(after.has_value(), i + 1 < all.size()) << name;
        }
        if (after && i + 1 < all.size()) {
          ASSERT_EQ(integers(*after), all[i + 1]) << name << ": resumed twice at " << i;
        }
        if (position % 7 != 0) break;
      }
    }
    if (static_cast<std::int64_t>(all.size()) < limit && position == all.size()) {
      EXPECT_FALSE(resumed.next()) << name;
    }
    if (position < all.size()) {
      ASSERT_EQ(integers(*reader.next()), all[position]);
    }
  }
}

TEST(Position, EveryKindOfPipelineGoesOnWhereItWas) {
  const auto add_one = [](const at::Tensor& x) { return x + 1; };
  const auto odd = [](const at::Tensor& x) { return x.item<std::int64_t>() % 2 == 1; };
  const auto three_times = [](const at::Tensor& x) {
    return range(3).map([x](const at::Tensor& i) { return x * 10 + i; });
  };
  const std::vector<std::pair<std::string, std::function<Dataset<at::Tensor>()>>> pipelines = {
      {"batch", [] { return range(10).batch(3); }},
      {"drop", [] { return range(10).batch(3, {.drop_remainder = true}); }},
      {"shuffle", [] { return range(12).shuffle(5).batch(2); }},
      {"shuffle elements", [] { return opaque_range(12).shuffle(5).batch(2); }},
      {"shuffle unknown size", [=] { return range(20).filter(odd).shuffle(4); }},
      {"repeat", [] { return range(5).shuffle(5).repeat(3).batch(4); }},
      {"repeat elements", [=] { return range(5).shuffle(3).map(add_one).repeat(3).batch(4).prefetch(2); }},
      {"repeat unknown size", [=] { return range(9).shuffle(3).filter(odd).repeat(3).batch(3).prefetch(3); }},
      {"endless", [=] { return range(5).map(add_one).shuffle(3).repeat().batch(2); }},
      {"repeat then shuffle", [=] { return opaque_range(6).repeat(3).shuffle(8).batch(5); }},
      {"interleave",
       [=] { return range(5).shuffle(5).interleave(three_times, {.cycle_length = 2, .block_length = 2}); }},
      {"read ahead",
       [=] { return range(5).interleave(three_times, {.cycle_length = 2, .parallel_calls = 2}).batch(2).prefetch(2); }},
      {"flat_map", [=] { return range(6).shuffle(4).flat_map(three_times).repeat(2).batch(4); }},
      {"parallel", [=] { return range(20).shuffle(9).map(add_one, {.parallel_calls = 3}).batch(3).prefetch(2); }},
      {"parallel elements", [=] { return opaque_range(20).shuffle(9).map(add_one, {.parallel_calls = 3}).repeat(2); }},
      {"take skip shard", [=] { return opaque_range(40).skip(3).shard(3, 1).take(9).repeat(2).prefetch(1); }},
      {"shard of repeat", [=] { return opaque_range(7).repeat(3).shard(2, 1).skip(2).batch(2); }},
      {"take of repeat", [=] { return opaque_range(4).repeat().take(11).batch(3); }},
      {"concatenate", [=] { return range(5).shuffle(5).concatenate(opaque_range(4)).repeat(2); }},
      {"unbatch", [=] { return range(11).batch(4).unbatch().repeat(2).batch(3); }},
      {"sample",
       [=] {
         return sample_from_datasets<at::Tensor>({range(7), range(20, 31)}, {.weights = {1, 2}});
       }},
      {"cache", [=] { return range(6).shuffle(6).map(add_one).cache().repeat(3).batch(4); }},
      {"window",
       [=] {
         return range(9).window(4, {.shift = 2}).flat_map([](const Dataset<at::Tensor>& w) {
           return w.batch(4, {.drop_remainder = true});
         });
       }},
      {"random",
       [=] {
         return range(9)
             .map_with_random([](const at::Tensor& x, RowRandom& r) { return x * 100 + r.below(100); })
             .repeat(2);
       }},
      {"zip",
       [=] {
         return zip(range(9).shuffle(9), opaque_range(4).repeat()).map([](const at::Tensor& a, const at::Tensor& b) {
           return a * 10 + b;
         });
       }},
      {"enumerate",
       [=] {
         return opaque_range(9).repeat(2).enumerate().map(
             [](const at::Tensor& i, const at::Tensor& x) { return i * 100 + x; });
       }},
      {"scan",
       [=] {
         return range(9).scan(at::zeros({}, at::kLong), [](const at::Tensor& s, const at::Tensor& x) {
           return std::pair{s + x, s + x};
         });
       }},
      {"errors",
       [=] {
         return range(9)
             .map([](const at::Tensor& x) {
               if (x.item<std::int64_t>() % 4 == 1) throw std::runtime_error("no");
               return x;
             })
             .ignore_errors()
             .batch(2);
       }},
  };
  for (const auto& [name, build] : pipelines) expect_exact_positions(build, name, 40);
}

TEST(Position, StagesThatCannotPromiseItRefuseByName) {
  const auto unordered = range(9).map([](at::Tensor x) { return x; }, {.parallel_calls = 2, .ordered = false}).batch(2);
  const auto generator = [](bool replayable) {
    return from_generator([] { return [i = std::int64_t{0}]() mutable -> std::optional<std::int64_t> { return i++; }; },
                          {.replayable = replayable})
        .batch(2);
  };
  const auto refusal = [](const auto& dataset) -> std::string {
    try {
      dataset.iterate({}).save();
    } catch (const FailedPrecondition& error) {
      return error.what();
    }
    return "";
  };
  EXPECT_NE(refusal(unordered).find("map(2 parallel calls, unordered)"), std::string::npos) << refusal(unordered);
  EXPECT_NE(refusal(generator(false)).find("from_generator"), std::string::npos);
  EXPECT_EQ(refusal(generator(true)), "");
}

TEST(Position, StatesOfOtherPipelinesAndDamagedOnesAreRefused) {
  auto it = range(9).batch(2).iterate({});
  it.next();
  const IteratorState state = it.save();
  EXPECT_THROW(range(9).batch(3).resume(state), InvalidArgument);
  std::string text = state.serialize();
  EXPECT_EQ(IteratorState::parse(text), state);
  for (std::size_t i = 0; i < text.size(); ++i) {
    std::string damaged = text;
    damaged[i] = static_cast<char>(damaged[i] ^ 1);
    EXPECT_THROW(IteratorState::parse(damaged), DataLoss) << i;
    EXPECT_THROW(IteratorState::parse(text.substr(0, i)), DataLoss) << i;
  }
}

TEST(Position, GoingOnComputesOnlyWhatIsNeeded) {
  int calls = 0;
  const auto counted = [&](const at::Tensor& x) {
    ++calls;
    return x;
  };
  const auto build = [&] { return range(1000).map(counted).shuffle(10).batch(10); };
  auto it = build().iterate({});
  it.skip(50);
  const IteratorState state = it.save();
  calls = 0;
  auto resumed = build().resume(state);
  EXPECT_LE(calls, 10) << "only what is in the shuffle's buffer";
  const auto late = [&] { return range(1000).shuffle(10).map(counted).batch(10); };
  calls = 0;
  auto other = late().iterate({});
  other.skip(90);
  EXPECT_EQ(calls, 0);
}

// Random pipelines against a plain reference: a list of numbers, to which each stage does the obvious.
class Reference {
 public:
  explicit Reference(std::uint32_t seed) : random_(seed) {}

  std::int64_t pick(std::int64_t low, std::int64_t high) {
    return std::uniform_int_distribution<std::int64_t>(low, high)(random_);
  }

  void check() {
    const std::int64_t size = pick(0, 30);
    std::vector<std::int64_t> expected = counting(size);
    Dataset<at::Tensor> dataset = pick(0, 1) ? range(size) : opaque_range(size);
    const std::int64_t stages = pick(1, 6);
    for (std::int64_t i = 0; i < stages; ++i) add_stage(dataset, expected);
    SCOPED_TRACE(dataset.to_string());
    EXPECT_EQ(values_of(dataset), expected);
    if (dataset.cardinality().is_known()) {
      EXPECT_EQ(dataset.cardinality().value(), static_cast<std::int64_t>(expected.size()));
    }
    const std::int64_t batch = pick(1, 7);
    const auto rows = rows_of(dataset.batch(batch));
    std::vector<std::int64_t> together;
    for (std::size_t i = 0; i < rows.size(); ++i) {
      if (i + 1 < rows.size()) {
        EXPECT_EQ(rows[i].size(), static_cast<std::size_t>(batch));
      }
      together.insert(together.end(), rows[i].begin(), rows[i].end());
    }
    EXPECT_EQ(together, expected);
    const std::int64_t jump = pick(0, static_cast<std::int64_t>(expected.size()) + 2);
    auto it = dataset.iterate({});
    EXPECT_EQ(it.skip(jump), std::min<std::int64_t>(jump, static_cast<std::int64_t>(expected.size())));
    const auto next = it.next();
    ASSERT_EQ(next.has_value(), jump < static_cast<std::int64_t>(expected.size()));
    if (next) {
      EXPECT_EQ(next->item<std::int64_t>(), expected[static_cast<std::size_t>(jump)]);
    }
    expect_exact_positions([&] { return dataset.batch(batch); }, "random", 12);
  }

 private:
  void add_stage(Dataset<at::Tensor>& dataset, std::vector<std::int64_t>& expected) {
    const auto size = static_cast<std::int64_t>(expected.size());
    std::vector<std::int64_t> result;
    switch (pick(0, 12)) {
      case 0: {
        const std::int64_t count = pick(0, 25);
        dataset = dataset.take(count);
        expected.resize(static_cast<std::size_t>(std::min(count, size)));
        return;
      }
      case 1: {
        const std::int64_t count = pick(0, 8);
        dataset = dataset.skip(count);
        expected.erase(expected.begin(), expected.begin() + std::min(count, size));
        return;
      }
      case 2: {
        const std::int64_t shards = pick(1, 4), index = pick(0, shards - 1);
        dataset = dataset.shard(shards, index);
        for (std::int64_t i = index; i < size; i += shards) result.push_back(expected[static_cast<std::size_t>(i)]);
        break;
      }
      case 3: {
        if (size > 40) return;
        const std::int64_t count = pick(0, 3);
        dataset = dataset.repeat(count);
        for (std::int64_t i = 0; i < count; ++i) result.insert(result.end(), expected.begin(), expected.end());
        break;
      }
      case 4: {
        dataset =
            dataset.map([](const at::Tensor& x) { return x + 1; }, {.parallel_calls = static_cast<int>(pick(0, 3))});
        for (const std::int64_t x : expected) result.push_back(x + 1);
        break;
      }
      case 5: {
        dataset = dataset.filter([](const at::Tensor& x) { return x.item<std::int64_t>() % 3 != 0; });
        for (const std::int64_t x : expected)
          if (x % 3 != 0) result.push_back(x);
        break;
      }
      case 6: {
        dataset = dataset.batch(pick(1, 4)).unbatch();
        return;
      }
      case 7: {
        dataset = dataset.prefetch(pick(0, 3));
        return;
      }
      case 8: {
        dataset = dataset.concatenate(range(3));
        result = expected;
        for (std::int64_t i = 0; i < 3; ++i) result.push_back(i);
        break;
      }
      case 9: {
        if (size > 40) return;
        dataset = dataset.flat_map([](const at::Tensor& x) { return from_tensors(x).repeat(2); });
        for (const std::int64_t x : expected) result.insert(result.end(), 2, x);
        break;
      }
      case 10: {
        dataset = dataset.cache();
        return;
      }
      case 11: {
        dataset = dataset.shuffle(1);
        return;
      }
      default: {
        // A real shuffle has no plain reference: its own result is one, and every later stage must fit it.
        dataset = dataset.shuffle(pick(2, 10),
                                  {.seed = static_cast<std::uint64_t>(pick(0, 99)), .reshuffle_each_iteration = false});
        result = values_of(dataset);
        auto sorted = result, before = expected;
        std::ranges::sort(sorted);
        std::ranges::sort(before);
        EXPECT_EQ(sorted, before);
        break;
      }
    }
    expected = result;
  }

  std::mt19937 random_;
};

TEST(Position, RandomPipelinesMatchAPlainReference) {
  for (std::uint32_t seed = 0; seed < 150 && !testing::Test::HasFatalFailure(); ++seed) {
    SCOPED_TRACE(seed);
    Reference(seed).check();
    if (testing::Test::HasFailure()) break;
  }
}

}  // namespace
}  // namespace lockstep::data
