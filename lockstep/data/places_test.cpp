#include <ATen/ops/scalar_tensor.h>
#include <ATen/ops/zeros.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <filesystem>
#include <fstream>
#include <functional>
#include <thread>

#include "lockstep/base/error.h"
#include "lockstep/data/element_bytes.h"
#include "lockstep/data/files/files.h"
#include "lockstep/data/format/tfrecord.h"
#include "tests/support/datasets.h"

// A stream is a sequence of places: counting them by reading, by skipping, by cardinality or by a saved position must
// give the same result.
namespace lockstep::data {
namespace {

using Build = std::function<Dataset<at::Tensor>()>;

Places read_all(const Dataset<at::Tensor>& dataset) { return places_of(dataset.iterator({.job_seed = 4, .epoch = 0})); }

Places rest_of(const Places& all, std::size_t from) {
  return {all.begin() + static_cast<std::ptrdiff_t>(std::min(from, all.size())), all.end()};
}

/// Skips in place, with a stage, and by resuming, at every place; the rest must equal that of plain reading.
void expect_one_way_to_count(const Build& build, const std::string& name) {
  SCOPED_TRACE(name);
  const Places all = read_all(build());
  for (std::size_t count = 0; count <= all.size() + 1; ++count) {
    auto it = build().iterator({.job_seed = 4, .epoch = 0});
    ASSERT_EQ(it.skip(static_cast<std::int64_t>(count)), static_cast<std::int64_t>(std::min(count, all.size())));
    ASSERT_EQ(places_of(std::move(it)), rest_of(all, count)) << "after skipping " << count;
    ASSERT_EQ(read_all(build().skip(static_cast<std::int64_t>(count))), rest_of(all, count)) << "skip(" << count << ")";
  }
  expect_exact_positions(build, name);
}

/// Pieces without rows, whose shape is known only from a function's rows; the last comes when there are no rows left.
TEST(Places, EmptyPiecesLookAlikeAfterEveryResume) {
  for (const std::int64_t rows : {2, 4, 5, 7, 9, 10}) {
    const auto build = [=] {
      return range(rows).map([](const at::Tensor& x) { return x.to(at::kInt); }).batch(2).rebatch({2, 0, 3});
    };
    expect_one_way_to_count(build, std::to_string(rows) + " rows");
    const std::size_t places = read_all(build()).size();
    for (std::size_t count = 0; count < places; ++count) {
      auto resumed = build().iterator({.job_seed = 4, .epoch = 0});
      for (std::size_t k = 0; k < count; ++k)
        resumed = resume(build(), ([&] {
                           resumed.next();
                           return resumed.state();
                         })());
      for (auto piece = resumed.next(); piece; piece = resumed.next()) {
        ASSERT_EQ(piece->scalar_type(), at::kInt) << rows << " rows, resumed " << count << " times";
      }
    }
  }
}

TEST(Places, ARemainderThatIsDroppedIsDroppedWhateverIsInIt) {
  const BatchOptions drop{.drop_remainder = true};
  for (const int calls : {0, 2}) {
    const auto rows = [=](std::vector<std::int64_t> bad) {
      return range(10).map(failing_at(std::move(bad)), {.parallel_calls = calls});
    };
    const std::vector<std::pair<std::string, Build>> cases = {
        {"batch", [=] { return rows({9}).batch(4, drop); }},
        {"batch of two errors",
         [=] {
           return rows({5, 8}).batch(4, drop);
         }},
        {"padded batch", [=] { return rows({9}).padded_batch(4, {.drop_remainder = true}); }},
        {"batch of other shapes",
         [=] {
           return range(10)
               .map([](const at::Tensor& x) { return at::zeros({x.item<std::int64_t>() == 9 ? 3 : 1}, at::kLong); },
                    {.parallel_calls = calls})
               .batch(4, drop);
         }},
        {"behind prefetch", [=] { return rows({9}).prefetch(2).batch(4, drop).prefetch(1); }}};
    for (const auto& [name, build] : cases) {
      EXPECT_EQ(read_all(build()).size(), 2u) << name;
      EXPECT_EQ(build().cardinality(), Cardinality(2)) << name;
      expect_one_way_to_count(build, name);
      expect_one_way_to_count([&] { return build().repeat(3); }, name + " repeated");
      expect_one_way_to_count([&] { return build().repeat(3).shuffle(3); }, name + " shuffled");
    }
  }
}

TEST(Places, WhatIsOnlyPromisedIsNotCountedWith) {
  const auto none = [](const at::Tensor&) { return false; };
  const auto identity = [](const at::Tensor& x) { return x; };
  const auto three = [](std::int64_t promised) {
    return from_generator(
        [] {
          return [i = std::int64_t{0}]() mutable -> std::optional<at::Tensor> {
            return i < 3 ? std::optional(at::scalar_tensor(i++, at::kLong)) : std::nullopt;
          };
        },
        {.replayable = true, .cardinality = promised});
  };
  const std::vector<std::pair<std::string, Build>> cases = {
      {"unbatch of a failed batch",
       [] { return range(12).map(failing_at({5})).batch(4, {.drop_remainder = true}).unbatch(); }},
      {"unbatch by a wrong spec",
       [=] {
         const auto wrong = [](const ElementSpec&) {
           return ElementSpec{{{ComponentSpec::tensor(at::kLong, PartialShape({5}))}}};
         };
         return range(12).batch(4).map(identity, {.spec = wrong}).unbatch();
       }},
      {"fewer than asserted", [] { return range(6).map(failing_at({1})).assert_cardinality(9); }},
      {"more than asserted", [] { return range(6).assert_cardinality(4); }},
      {"fewer than a generator promised", [=] { return three(5); }},
      {"more than a generator promised", [=] { return three(2); }},
      {"endless for all one can know", [=] { return range(6).filter(none).repeat(); }}};
  for (const auto& [name, build] : cases) {
    expect_one_way_to_count(build, name);
    expect_one_way_to_count([&] { return build().repeat(3); }, name + ", repeated");
    expect_one_way_to_count([&] { return build().map(identity).shuffle(3).repeat(2); }, name + ", shuffled");
    expect_one_way_to_count(
        [&] { return zip(build(), range(50)).map([](at::Tensor a, at::Tensor) { return a; }).repeat(2); },
        name + ", zipped");
    expect_one_way_to_count([&] { return build().cache().take(20).repeat(2); }, name + ", cached");
  }
}

TEST(Places, ACacheRemembersWhatThereIsAndNotWhatWasPromised) {
  const LogSilence quiet;
  const auto cached = range(6).assert_cardinality(4).ignore_errors().concatenate(range(2)).cache();
  EXPECT_EQ(read_all(cached), read_all(cached));
  const auto short_promise = from_generator(
                                 [] {
                                   return [i = std::int64_t{0}]() mutable -> std::optional<at::Tensor> {
                                     return i < 3 ? std::optional(at::scalar_tensor(i++, at::kLong)) : std::nullopt;
                                   };
                                 },
                                 {.cardinality = 2})
                                 .cache();
  EXPECT_EQ(read_all(short_promise).size(), 3u);
  EXPECT_EQ(read_all(short_promise).size(), 3u);
}

/// 0, 1, ... with unreadable rows.
class DamagedRows final : public RowSource {
 public:
  DamagedRows(std::int64_t size, std::int64_t divisor) : size_(size), divisor_(divisor) {}
  std::int64_t size() const override { return size_; }
  void gather(std::span<const std::int64_t> indices, BufferPool&, Element& batch) const override {
    std::vector<Element> rows;
    for (const std::int64_t index : indices) rows.push_back(row(index));
    batch = stack(std::move(rows), "damaged rows");
  }
  Element row(std::int64_t index) const override {
    if (index % divisor_ == 3) throw std::runtime_error("cannot be read");
    return Element::of(at::scalar_tensor(index, at::kLong));
  }

 private:
  std::int64_t size_;
  std::int64_t divisor_;
};

TEST(Places, ARowThatCannotBeReadFailsAlone) {
  const auto source = [] {
    return Dataset<at::Tensor>(
        make_rows({.kind = "damaged"}, std::make_shared<DamagedRows>(300, 50), ElementSpec::unknown()));
  };
  const auto add_one = [](const at::Tensor& x) { return x + 1; };
  const auto plain = read_all(source().map(add_one));
  EXPECT_EQ(std::count(plain.begin(), plain.end(), std::nullopt), 6);
  const auto batches = read_all(source().map(add_one).batch(8));
  for (const int calls : {1, 2, 4}) {
    EXPECT_EQ(read_all(source().map(add_one, {.parallel_calls = calls})), plain) << calls;
    EXPECT_EQ(read_all(source().map(add_one, {.parallel_calls = calls}).batch(8)), batches) << calls;
  }
}

TEST(Places, DatasetsMadeByFunctionsAreAskedForTheirPositionsToo) {
  const auto unordered = [](const at::Tensor&) {
    return range(5).map([](at::Tensor x) { return x; }, {.parallel_calls = 2, .ordered = false, .name = "hasty"});
  };
  const std::vector<std::pair<std::string, Dataset<at::Tensor>>> refused = {
      {"flat_map", range(3).flat_map(unordered)},
      {"interleave", range(3).interleave(unordered, {.cycle_length = 2}).shuffle(3).batch(2)},
      {"read ahead", range(3).interleave(unordered, {.cycle_length = 2, .parallel_calls = 2}).prefetch(2)},
      {"function within a function",
       range(3)
           .flat_map([=](const at::Tensor& x) { return from_tensors(x).flat_map(unordered); })
           .filter([](const at::Tensor&) { return true; })},
      {"behind a full cache", [&] {
         const auto cached = range(3).flat_map(unordered).cache();
         read_all(cached);
         return cached;
       }()}};
  for (const auto& [name, dataset] : refused) {
    auto it = dataset.iterator({});
    it.next();
    const std::string error = error_of([&] { it.state(); });
    EXPECT_TRUE(contains(error, "hasty") && contains(error, "do not keep the order")) << name << ": " << error;
  }
  auto exact = range(3).flat_map([](const at::Tensor&) { return range(5); }).iterator({});
  exact.next();
  EXPECT_EQ(error_of([&] { exact.state(); }), "");
}

TEST(Places, OneCacheReadTwiceInAPassHasOneOrder) {
  const auto cached = [] { return range(6).shuffle(6).map([](at::Tensor x) { return x; }).cache(); };
  const auto pairs = [](const Dataset<at::Tensor>& a, const Dataset<at::Tensor>& b) {
    return zip(a, b).map([](const at::Tensor& x, const at::Tensor& y) { return x * 10 + y; });
  };
  const std::vector<std::pair<std::string, Build>> cases = {
      {"zip",
       [=] {
         const auto c = cached();
         return pairs(c, c.shuffle(6));
       }},
      {"zip, the other way round",
       [=] {
         const auto c = cached();
         return pairs(c.shuffle(3), c.skip(1));
       }},
      {"one behind the other",
       [=] {
         const auto c = cached();
         return c.take(3).concatenate(c.shuffle(6)).concatenate(c);
       }},
      {"sampled", [=] {
         const auto c = cached();
         return sample_from_datasets<at::Tensor>({c.take(2).shuffle(2), c, c.shuffle(4)});
       }}};
  for (const auto& [name, build] : cases) {
    expect_exact_positions(build, name);
    expect_exact_positions([&] { return build().repeat(2).batch(4); }, name + " repeated");
  }
}

TEST(Places, ACacheThatWasOnlyLookedAtTakesOverAPosition) {
  const auto cached = [] { return range(9).shuffle(9).map([](at::Tensor x) { return x; }).cache(); };
  auto it = cached().shuffle(3).iterator({.job_seed = 1, .epoch = 0});
  it.next();
  const IteratorState state = it.state();
  const Places rest = places_of(std::move(it));
  const auto looked_at = cached();
  looked_at.iterator({.job_seed = 7, .epoch = 0}).next();
  EXPECT_EQ(places_of(resume(looked_at.shuffle(3), state)), rest);
}

std::string temporary(const std::string& name) {
  return testing::TempDir() + "/lockstep_places_" + std::to_string(::getpid()) + "_" + name;
}

void write_records(const std::string& path, int first, int count) {
  TFRecordWriter writer(path);
  for (int i = 0; i < count; ++i) writer.write("record " + std::to_string(first + i));
  writer.close();
}

TEST(Places, APositionBelongsToItsFilesWeightsAndNumbers) {
  const std::string a = temporary("a.rec"), b = temporary("b.rec"), kept = temporary("kept");
  write_records(a, 0, 5);
  write_records(b, 100, 5);
  const auto records = [](const std::vector<std::string>& files) { return tfrecord_dataset(files).batch(2); };
  auto it = records({a}).iterator({});
  it.next();
  const IteratorState state = it.state();
  EXPECT_EQ(resume(records({a}), state).next(), (Strings{"record 2", "record 3"}));
  EXPECT_THROW(resume(records({b}), state), InvalidArgument);
  const std::string error = error_of([&] { resume(records({b}), state); });
  EXPECT_TRUE(contains(error, a) && contains(error, b)) << error;

  EXPECT_EQ(tfrecord_dataset(a).cache(kept).to_vector().size(), 5u);
  EXPECT_THROW(tfrecord_dataset(b).cache(kept).to_vector(), FailedPrecondition);

  // Long lists are distinguished too, without being written out.
  std::vector<std::string> many, others;
  for (int i = 0; i < 500; ++i) many.push_back("file " + std::to_string(i));
  others = many;
  std::swap(others[200], others[201]);
  const auto first_of = [](const std::vector<std::string>& names) { return from_tensor_slices(names).take(9); };
  auto names = first_of(many).iterator({});
  names.next();
  EXPECT_LT(names.state().serialize().size(), 1000u);
  EXPECT_EQ(resume(first_of(many), names.state()).next(), "file 1");
  EXPECT_THROW(resume(first_of(others), names.state()), InvalidArgument);

  const auto sample = [](double weight) {
    return sample_from_datasets<at::Tensor>({range(9), range(9)}, {.weights = {1, weight}});
  };
  auto sampled = sample(0.123456789).iterator({});
  sampled.next();
  EXPECT_EQ(error_of([&] { resume(sample(0.123456789), sampled.state()); }), "");
  EXPECT_THROW(resume(sample(0.1234567891), sampled.state()), InvalidArgument);
  for (const std::string& path : {a, b, kept}) std::filesystem::remove(path);
}

TEST(Places, APositionDoesNotDependOnHowManyThreadsAndBuffersThereAre) {
  const auto add_one = [](const at::Tensor& x) { return x + 1; };
  const auto three = [](const at::Tensor& x) { return range(3).map([x](const at::Tensor& i) { return x * 10 + i; }); };
  struct Running {
    int calls;
    std::int64_t ahead;
  };
  const auto build = [=](const Running& r) {
    auto rows = range(8)
                    .shuffle(5)
                    .map(add_one, {.parallel_calls = r.calls})
                    .interleave(three, {.cycle_length = 2, .parallel_calls = r.calls})
                    .map_with_random([](const at::Tensor& x, RowRandom& random) { return x * 100 + random.below(100); },
                                     {.parallel_calls = r.calls});
    if (r.ahead >= 0) rows = rows.prefetch(r.ahead);
    auto batches = rows.batch(5, {.parallel_calls = r.calls});
    return r.ahead >= 0 ? batches.prefetch(r.ahead).with_options({}) : batches;
  };
  const Places all = read_all(build({0, -1}));
  for (const Running& saved : {Running{0, -1}, Running{1, 0}, Running{2, 4}}) {
    auto it = build(saved).iterator({.job_seed = 4, .epoch = 0});
    it.next();
    it.next();
    const IteratorState state = it.state();
    for (const Running& resumed : {Running{0, -1}, Running{3, 1}, Running{2, 2}})
      EXPECT_EQ(places_of(resume(build(resumed), state)), rest_of(all, 2));
  }
}

TEST(Places, ADamagedElementOfACacheFileIsOnePlace) {
  const std::string path = temporary("damaged_cache");
  const auto build = [&] { return opaque_range(9).cache(path); };
  const Places whole = read_all(build());
  const auto size = static_cast<std::int64_t>(std::filesystem::file_size(path));
  std::string bytes(static_cast<std::size_t>(size), ' ');
  std::ifstream(path, std::ios::binary).read(bytes.data(), size);
  const std::int64_t element =
      16 + static_cast<std::int64_t>(to_bytes(Element::of(at::scalar_tensor(0, at::kLong)), "test").size());
  const std::int64_t end = size - (16 + 19);
  const auto damage = [&](std::int64_t at) {
    std::string damaged = bytes;
    damaged[static_cast<std::size_t>(at)] = static_cast<char>(damaged[static_cast<std::size_t>(at)] ^ 0x55);
    std::ofstream(path, std::ios::binary).write(damaged.data(), size);
  };
  const auto filter_nothing = [](const at::Tensor&) { return true; };
  for (std::int64_t k = 0; k < 9; ++k) {
    damage(end - (9 - k) * element + 14);  // in the bytes of element k
    Places expected = whole;
    expected[static_cast<std::size_t>(k)] = std::nullopt;
    ASSERT_EQ(read_all(build()), expected) << k;
    ASSERT_EQ(read_all(build().skip(k)), rest_of(expected, static_cast<std::size_t>(k)));
    ASSERT_EQ(read_all(build().skip(k + 1)), rest_of(expected, static_cast<std::size_t>(k) + 1));
    ASSERT_EQ(read_all(build().shuffle(3).skip(4)), rest_of(read_all(build().shuffle(3)), 4));
  }
  damage(end - 3 * element);  // the length of element 6: the rest cannot be found
  Places expected = whole;
  for (std::size_t i = 6; i < 9; ++i) expected[i] = std::nullopt;
  EXPECT_EQ(read_all(build()), expected);
  EXPECT_EQ(read_all(build().repeat(2).skip(8)).size(), 10u);
  std::filesystem::remove(path);
  const auto unknown = [&] { return range(9).filter(filter_nothing).cache(path); };
  read_all(unknown());
  std::filesystem::resize_file(path, std::filesystem::file_size(path) - 35 - 5);
  EXPECT_EQ(read_all(unknown()).size(), 9u) << "the last one is cut off, and so is the end";
  std::filesystem::remove(path);
}

TEST(Places, ManyThousandDatasetsBehindEachOther) {
  constexpr std::int64_t kCount = 30'000;
  Dataset<at::Tensor> all = range(1);
  for (std::int64_t i = 1; i < kCount; ++i) all = all.concatenate(range(i, i + 1));
  EXPECT_EQ(all.cardinality(), Cardinality(kCount));
  EXPECT_TRUE(all.element_spec().is_known());
  auto it = all.iterator();
  EXPECT_EQ(it.skip(kCount - 2), kCount - 2);
  EXPECT_EQ(it.next()->item<std::int64_t>(), kCount - 2);
  const IteratorState state = it.state();
  EXPECT_EQ(places_of(std::move(it)), (Places{{{kCount - 1}}}));
  EXPECT_EQ(places_of(resume(all, state)), (Places{{{kCount - 1}}}));
  std::int64_t expected = 0;
  for (auto again = all.iterator(); auto x = again.next(); ++expected) ASSERT_EQ(x->item<std::int64_t>(), expected);
  EXPECT_EQ(expected, kCount);
}

TEST(Places, ChainsOfConcatenateAreWhatTheyWere) {
  const auto letters = [](std::int64_t first) { return range(first, first + 4).shuffle(4); };
  const auto left = letters(0).concatenate(letters(10)).concatenate(letters(20));
  const auto right = letters(0).concatenate(letters(10).concatenate(letters(20)));
  EXPECT_EQ(left.to_string(),
            "concatenate\n├─ shuffle(4)\n│  └─ range(4)\n├─ shuffle(4)\n│  └─ range(10, 14)\n└─ shuffle(4)\n"
            "   └─ range(20, 24)\n");
  EXPECT_EQ(right.to_string(),
            "concatenate\n├─ shuffle(4)\n│  └─ range(4)\n└─ concatenate\n   ├─ shuffle(4)\n   │  └─ range(10, 14)\n"
            "   └─ shuffle(4)\n      └─ range(20, 24)\n");
  expect_one_way_to_count([&] { return left; }, "left");
  expect_one_way_to_count([&] { return right.repeat(2); }, "right");
  auto it = left.iterator({.job_seed = 4, .epoch = 0});
  it.next();
  const auto ahead = letters(0).concatenate(letters(10)).prefetch(2).concatenate(letters(20).prefetch(1));
  EXPECT_EQ(places_of(resume(ahead, it.state())), rest_of(read_all(left), 1)) << "prefetch changes nothing";
  EXPECT_THROW(resume(right, it.state()), InvalidArgument) << "their shuffles differ";
}

TEST(Places, AskingHowManyElementsThereAreCostsNothing) {
  Dataset<at::Tensor> nested = range(4);
  for (int i = 0; i < 60; ++i)
    nested = zip(nested, nested).map([](const at::Tensor& a, const at::Tensor&) { return a; });
  EXPECT_EQ(nested.repeat(2).cardinality(), Cardinality(8));
  Dataset<at::Tensor> doubled = range(1);
  for (int i = 0; i < 60; ++i) doubled = doubled.concatenate(doubled);
  EXPECT_EQ(doubled.cardinality(), Cardinality(std::int64_t{1} << 60));
}

TEST(Places, AMeterBeginsWithTheFirstElement) {
  const auto meter = std::make_shared<StageMeter>();
  auto it = opaque_range(3).iterator({.meter = meter});
  EXPECT_EQ(meter->report().seconds, 0);
  const auto asked = std::chrono::steady_clock::now();
  while (it.next()) {
  }
  const double measured = meter->report().seconds;
  EXPECT_GT(measured, 0);
  EXPECT_LE(measured, std::chrono::duration<double>(std::chrono::steady_clock::now() - asked).count());
}

}  // namespace
}  // namespace lockstep::data
