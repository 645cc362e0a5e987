#include <ATen/ops/zeros.h>
#include <gtest/gtest.h>

#include <unistd.h>

#include <filesystem>
#include <functional>

#include "lockstep/base/error.h"
#include "tests/support/datasets.h"

namespace lockstep::data {
namespace {

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
      dataset.iterator({}).state();
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
  auto it = range(9).batch(2).iterator({});
  it.next();
  const IteratorState state = it.state();
  EXPECT_THROW(resume(range(9).batch(3), state), InvalidArgument);
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
  auto it = build().iterator({});
  it.skip(50);
  const IteratorState state = it.state();
  calls = 0;
  auto resumed = resume(build(), state);
  EXPECT_LE(calls, 10) << "only what is in the shuffle's buffer";
  const auto late = [&] { return range(1000).shuffle(10).map(counted).batch(10); };
  calls = 0;
  auto other = late().iterator({});
  other.skip(90);
  EXPECT_EQ(calls, 0);
}

/// Throws at the rows whose number modulo `divisor` is `rest`.
auto picky(std::int64_t divisor, std::int64_t rest) {
  return [=](const at::Tensor& x) {
    if (x.item<std::int64_t>() % divisor == rest) throw std::runtime_error("picky");
    return x;
  };
}

// A failed element keeps its place: what follows is the same whether it was read, skipped or resumed after.
TEST(Position, FailedElementsKeepTheirPlaces) {
  const LogSilence quiet;
  const auto bad = picky(5, 2);
  const auto small = [](const at::Tensor& x) { return x.item<std::int64_t>() < 17; };
  const auto two = [](const at::Tensor& x) { return from_tensors(x).repeat(2); };
  const std::vector<std::pair<std::string, std::function<Dataset<at::Tensor>()>>> pipelines = {
      {"map", [=] { return range(20).map(bad); }},
      {"parallel", [=] { return range(20).map(bad, {.parallel_calls = 2}); }},
      {"batch", [=] { return range(20).map(bad).batch(3); }},
      {"drop", [=] { return range(20).map(bad).batch(3, {.drop_remainder = true}); }},
      {"error in the dropped rest", [=] { return range(18).map(bad).batch(4, {.drop_remainder = true}); }},
      {"parallel batch", [=] { return range(20).map(bad, {.parallel_calls = 2}).batch(3); }},
      {"padded batch", [=] { return range(20).map(bad).padded_batch(3); }},
      {"map of a failed input", [=] { return range(20).map(bad).map([](at::Tensor x) { return x + 1; }).batch(2); }},
      {"take", [=] { return range(20).map(bad).take(9).batch(2); }},
      {"skip", [=] { return range(20).map(bad).skip(3).batch(2); }},
      {"shard", [=] { return range(20).map(bad).shard(2, 1).batch(2); }},
      {"filter", [=] { return range(20).map(bad).filter(small).batch(2); }},
      {"take_while", [=] { return range(20).map(bad).take_while(small).batch(2); }},
      {"unique", [=] { return range(20).map(bad).unique().batch(2); }},
      {"shuffle", [=] { return range(20).map(bad).shuffle(6).batch(2); }},
      {"shuffle unknown size", [=] { return range(20).map(bad).filter(small).shuffle(6).batch(2); }},
      {"repeat", [=] { return range(7).map(bad).repeat(3).batch(2).prefetch(2); }},
      {"all fail", [=] { return range(3).map(picky(1, 0)).repeat(2); }},
      {"flat_map", [=] { return range(9).map(bad).flat_map(two).batch(2); }},
      {"failing inside", [=] { return range(3).flat_map([=](const at::Tensor&) { return range(5).map(bad); }); }},
      {"interleave",
       [=] {
         return range(6)
             .map(picky(5, 1))
             .interleave([=](const at::Tensor&) { return range(4).map(bad); }, {.cycle_length = 2, .block_length = 2});
       }},
      {"concatenate", [=] { return range(6).map(bad).concatenate(range(6).map(bad)).batch(2); }},
      {"unbatch", [=] { return range(12).map(bad).batch(2).unbatch(); }},
      {"rebatch", [=] { return range(12).map(bad).batch(2).rebatch(3); }},
      {"zip",
       [=] {
         return zip(range(9).map(bad), range(9).map(picky(4, 3))).map([](const at::Tensor& a, const at::Tensor& b) {
           return a * 10 + b;
         });
       }},
      {"window",
       [=] {
         return range(12).map(bad).window(3, {.shift = 2}).flat_map([](const Dataset<at::Tensor>& w) {
           return w.batch(3);
         });
       }},
      {"sample",
       [=] {
         return sample_from_datasets<at::Tensor>({range(7).map(bad), range(20, 31).map(bad)});
       }},
      {"scan",
       [=] {
         return range(9).map(bad).scan(at::zeros({}, at::kLong), [](const at::Tensor& s, const at::Tensor& x) {
           return std::pair{s + x, s + x};
         });
       }},
      {"enumerate",
       [=] {
         return range(9).map(bad).enumerate().map([](const at::Tensor& i, const at::Tensor& x) { return i * 100 + x; });
       }},
      {"random",
       [=] {
         return range(20).map(bad).map_with_random(
             [](const at::Tensor& x, RowRandom& r) { return x * 100 + r.below(100); }, {.parallel_calls = 2});
       }},
      {"cache", [=] { return range(9).map(bad).cache().repeat(2).batch(2); }},
      {"assert_cardinality", [=] { return range(9).map(bad).assert_cardinality(9); }},
      {"wrong cardinality", [=] { return range(9).filter(small).assert_cardinality(8); }},
      {"ignored", [=] { return range(20).map(bad).ignore_errors().batch(2); }},
      {"ignored batches", [=] { return range(20).map(bad).batch(2).ignore_errors().prefetch(2); }},
  };
  for (const auto& [name, build] : pipelines) expect_exact_positions(build, name, 40);
}

TEST(Position, APositionAfterAnErrorLiesBehindIt) {
  const auto build = [] { return range(6).map(picky(6, 2)); };
  auto it = build().iterator({.job_seed = 0, .epoch = 0});
  it.next();
  it.next();
  EXPECT_THROW(it.next(), std::runtime_error);
  EXPECT_EQ(it.consumed(), 3);
  EXPECT_EQ(resume(build(), it.state()).next()->item<std::int64_t>(), 3);
  EXPECT_EQ(it.next()->item<std::int64_t>(), 3);
}

// A cache is filled in one program and empty in another: a position means the same in both.
TEST(Position, PositionsBehindACacheDoNotDependOnWhatItHolds) {
  const auto add_one = [](const at::Tensor& x) { return x + 1; };
  using Above = std::function<Dataset<at::Tensor>(const Dataset<at::Tensor>&)>;
  const std::vector<std::pair<std::string, Above>> above = {
      {"nothing", [](const auto& d) { return d; }},
      {"batch", [](const auto& d) { return d.batch(2); }},
      {"shuffle", [](const auto& d) { return d.shuffle(4).batch(2); }},
      {"chain", [](const auto& d) { return d.skip(1).shard(2, 0).take(4).repeat(3).batch(2); }},
      {"repeat", [](const auto& d) { return d.repeat(3).batch(4).prefetch(2); }},
      {"take of repeat", [](const auto& d) { return d.repeat().take(20).shuffle(3); }},
      {"parallel", [=](const auto& d) { return d.shuffle(5).map(add_one, {.parallel_calls = 2}).repeat(2); }},
      {"parallel batch", [=](const auto& d) { return d.shuffle(5).map(add_one, {.parallel_calls = 2}).batch(3); }},
      {"plain map", [=](const auto& d) { return d.take(7).map(add_one).batch(3); }},
  };
  const auto fill = [](const Dataset<at::Tensor>& dataset) {
    places_of(dataset.iterator({.job_seed = 5, .epoch = 0}));
  };
  const std::string file = testing::TempDir() + "/lockstep_position_cache_" + std::to_string(::getpid());
  for (const std::string& path : {std::string(), file}) {
    for (const auto& [name, build] : above) {
      const auto cached = [&] { return range(9).shuffle(9).map(add_one).cache(path); };
      std::filesystem::remove(file);
      const auto all = places_of(build(cached()).iterator({.job_seed = 5, .epoch = 2}));
      for (const bool filled_when_saved : {false, true}) {
        for (std::size_t position = 0; position <= all.size(); ++position) {
          std::filesystem::remove(file);
          const auto source = cached();
          if (filled_when_saved) fill(build(source));
          auto it = build(source).iterator({.job_seed = 5, .epoch = 2});
          for (std::size_t i = 0; i < position; ++i) it.next();
          const IteratorState state = it.state();
          for (const bool filled_when_resumed : {false, true}) {
            std::filesystem::remove(file);
            const auto fresh = cached();
            if (filled_when_resumed) fill(build(fresh));
            ASSERT_EQ(places_of(resume(build(fresh), state)),
                      Places(all.begin() + static_cast<std::ptrdiff_t>(position), all.end()))
                << name << (path.empty() ? "" : " in a file") << ", saved at " << position << " with a cache that was "
                << (filled_when_saved ? "full" : "empty") << ", resumed with one that was "
                << (filled_when_resumed ? "full" : "empty");
          }
        }
      }
    }
  }
  std::filesystem::remove(file);
}

TEST(Position, ACacheGoesOnWithTheSeedThatFilledIt) {
  const auto cached = [] { return range(20).shuffle(20).map([](at::Tensor x) { return x; }).cache(); };
  const auto source = cached();
  const auto first = places_of(source.iterator({.job_seed = 1, .epoch = 0}));
  auto later = source.iterator({.job_seed = 2, .epoch = 1});
  for (int i = 0; i < 5; ++i) later.next();
  EXPECT_EQ(places_of(resume(cached(), later.state())), Places(first.begin() + 5, first.end()));
  const auto other = cached();
  places_of(other.iterator({.job_seed = 2, .epoch = 0}));
  EXPECT_THROW(resume(other, later.state()), FailedPrecondition) << "it holds other rows";

  // A cache may also be filled by a pipeline other than the one whose position is saved.
  const auto looked_at = cached();
  places_of(looked_at.iterator({.job_seed = 1, .epoch = 0}));
  auto shuffled = looked_at.shuffle(4, {.seed = 1}).batch(3).iterator({.job_seed = 2, .epoch = 1});
  shuffled.next();
  const IteratorState state = shuffled.state();
  EXPECT_EQ(places_of(resume(cached().shuffle(4, {.seed = 1}).batch(3), state)), places_of(std::move(shuffled)));
}

TEST(Position, AnEndlessRepeatKeepsItsPositionsSmallAndExact) {
  const auto build = [] {
    return range(3).filter([](const at::Tensor& x) { return x.item<std::int64_t>() > 0; }).repeat();
  };
  auto it = build().iterator({.job_seed = 0, .epoch = 0});
  EXPECT_EQ(it.skip(100'001), 100'001);
  EXPECT_EQ(resume(build(), it.state()).next()->item<std::int64_t>(), 2);
  auto ahead = build().prefetch(50).iterator({.job_seed = 0, .epoch = 0});
  for (int i = 0; i < 5001; ++i) ahead.next();
  EXPECT_EQ(resume(build().prefetch(50), ahead.state()).next()->item<std::int64_t>(), 2);
}

// A half-restored iterator would continue anywhere.
TEST(Position, AStateThatCannotBeLoadedLeavesAnErrorInsteadOfAPlace) {
  const auto cached = [] { return range(9).shuffle(9).cache(); };
  auto other = cached().iterator({.job_seed = 1, .epoch = 0});
  other.next();
  const auto filled = cached();
  places_of(filled.iterator({.job_seed = 2, .epoch = 0}));
  auto it = filled.iterator({.job_seed = 2, .epoch = 0});
  it.next();
  it.next();
  const IteratorState mine = it.state();
  EXPECT_THROW(it.load_state(other.state()), FailedPrecondition);
  EXPECT_THROW(it.next(), FailedPrecondition);
  EXPECT_THROW(it.state(), FailedPrecondition);
  it.load_state(mine);
  EXPECT_TRUE(it.next()->equal(*resume(filled, mine).next()));
}

}  // namespace
}  // namespace lockstep::data
