// Mistakes that are visible when a pipeline is built are reported then, naming the component.
#include <ATen/ops/equal.h>
#include <ATen/ops/eye.h>
#include <ATen/ops/full.h>
#include <ATen/ops/ones.h>
#include <gtest/gtest.h>

#include <limits>

#include "lockstep/base/error.h"
#include "tests/support/datasets.h"

namespace lockstep::data {
namespace {

using Pair = std::pair<at::Tensor, at::Tensor>;

template <class F>
void expect_refused(F&& build, int number, const std::vector<std::string>& fragments) {
  try {
    build();
  } catch (const InvalidArgument& error) {
    EXPECT_EQ(error.number(), number) << error.what();
    for (const std::string& fragment : fragments)
      EXPECT_TRUE(contains(error.what(), fragment)) << fragment << " in\n" << error.what();
    return;
  } catch (const std::exception& error) {
    FAIL() << "another error: " << error.what();
  }
  FAIL() << "accepted: " << fragments.front();
}

Dataset<Pair> known_pairs() { return from_tensor_slices(Pair{at::ones({4, 2}), at::ones({4, 2}, at::kLong)}); }

/// The same without a known spec.
Dataset<Pair> unknown_pairs() {
  return known_pairs().map([](Pair pair) { return pair; });
}

TEST(Padding, FitsTheComponents) {
  using Shape = std::vector<std::int64_t>;
  struct Case {
    PaddedBatchOptions options;
    int number;
    std::vector<std::string> fragments;
    bool needs_rows = false;  ///< the spec must be known beyond the number of components
  };
  const std::vector<Case> table{
      {{.padded_shapes = {Shape{4}, Shape{4}, Shape{4}}},
       errors::kBadOption,
       {"3 padded shapes for elements of 2 components", "no component 2", "padded_batch(2)"}},
      {{.padded_shapes = {Shape{4}}}, errors::kBadOption, {"1 padded shape for elements of 2", "component 1 has none"}},
      {{.padding_values = {1, 2, 3}}, errors::kBadOption, {"3 padding values for elements of 2 components"}},
      {{.padded_shapes = {Shape{4}, Shape{4, 1}}},
       errors::kShape,
       {"padded shape of component 1 must have the component's rank", "[4, 1] for int64[2]"},
       true},
      {{.padding_values = {0.5, 0.5}},
       errors::kBadOption,
       {"padding value of component 1 does not fit its type", "0.5 for int64[2]"},
       true},
      {{.padding_values = {0.5}}, errors::kBadOption, {"component 1", "0.5 for int64[2]"}, true},
      {{.padding_values = {0, 1e30}}, errors::kBadOption, {"component 1", "1e+30 for int64[2]"}, true},
      {{.padding_values = {1e300, 0}}, errors::kBadOption, {"component 0", "1e+300 for float32[2]"}, true},
  };
  for (const Case& c : table) {
    expect_refused([&] { known_pairs().padded_batch(2, c.options); }, c.number, c.fragments);
    if (c.needs_rows) {
      const auto batches = unknown_pairs().padded_batch(2, c.options);
      expect_refused([&] { batches.iterator().next(); }, c.number, c.fragments);
    } else {
      expect_refused([&] { unknown_pairs().padded_batch(2, c.options); }, c.number, c.fragments);
    }
  }
  expect_refused(
      [] {
        known_pairs().padded_batch(2, {.padded_shapes = {Shape{4}, Shape{-2}}});
      },
      errors::kBadOption, {"-1 to pad to the longest row"});
  const auto named = range(2).map([](const at::Tensor& x) { return std::map<std::string, at::Tensor>{{"a", x}}; });
  const auto batches = named.padded_batch(2, {.padding_values = {1, 2}});
  expect_refused([&] { batches.iterator().next(); }, errors::kBadOption,
                 {"2 padding values for elements of 1 component"});
}

TEST(Padding, HoldsEveryValueOfTheType) {
  struct Case {
    at::ScalarType dtype;
    std::vector<c10::Scalar> fitting, not_fitting;
  };
  constexpr double kInfinity = std::numeric_limits<double>::infinity();
  const double nan = std::numeric_limits<double>::quiet_NaN();
  const std::vector<Case> table{
      {at::kLong, {-1, 3.0, true, std::numeric_limits<std::int64_t>::max(), -0x1p63}, {0.5, 0x1p63, kInfinity, nan}},
      {at::kInt, {-2147483648LL, 2147483647}, {2147483648LL, 1e10, -0.5}},
      {at::kShort, {-32768, 32767}, {32768}},
      {at::kChar, {-128, 127}, {128, -129}},
      {at::kByte, {0, 255}, {-1, 256}},
      {at::kBool, {true, 0, 1.0}, {2, 0.5, -1}},
      {at::kHalf, {65504, 0.1, kInfinity}, {65536}},
      {at::kBFloat16, {1e38, 0x1.FEp127, nan}, {3.4028e38, 1e39}},
      {at::kFloat8_e4m3fn, {}, {449}},
      {at::kFloat8_e5m2, {}, {60000}},
      {at::kFloat, {0.1, 1e38, -kInfinity, nan, 1LL << 40}, {1e39}},
      {at::kDouble, {1e300, 0.1}, {}},
  };
  for (const Case& c : table) {
    const auto rows = from_tensor_slices(at::ones({1, 1}).to(c.dtype));
    const auto pad = [&](const c10::Scalar& value) {
      return rows.padded_batch(1, {.padded_shapes = {std::vector<std::int64_t>{2}}, .padding_values = {value}});
    };
    for (const c10::Scalar& value : c.fitting) {
      const at::Tensor padded = pad(value).to_vector().at(0)[0][1];
      EXPECT_TRUE(at::equal(padded, at::full({}, value, c.dtype)) || (padded != padded).item<bool>()) << c.dtype;
    }
    for (const c10::Scalar& value : c.not_fitting) EXPECT_THROW(pad(value), InvalidArgument) << c.dtype;
  }
}

TEST(DatasetsInOne, MustHaveTheSameElements) {
  const auto integers = range(3);
  const auto floats = from_tensor_slices(at::ones({3}));
  const auto rows = from_tensor_slices(at::ones({3, 2}, at::kLong));
  const auto sample = [](const auto& a, const auto& b) { sample_from_datasets({a, a, b}); };
  const std::string types = "component 0 is int64[] and float32[]", ranks = "component 0 is int64[] and int64[2]";
  expect_refused([&] { integers.concatenate(floats); }, errors::kStructure, {types, "concatenate, dataset 1"});
  expect_refused([&] { integers.concatenate(rows); }, errors::kStructure, {ranks});
  expect_refused([&] { sample(integers, floats); }, errors::kStructure, {types, "sample_from_datasets, dataset 2"});
  expect_refused([&] { sample(integers, rows); }, errors::kStructure, {ranks});
  expect_refused([&] { known_pairs().concatenate(zip(floats, floats)); }, errors::kStructure,
                 {"component 0 is float32[2] and float32[]"});
  using Named = std::map<std::string, at::Tensor>;
  const auto named = [](const Named& columns) { return from_tensor_slices(columns); };
  const at::Tensor ones = at::ones({3});
  expect_refused([&] { named({{"a", ones}}).concatenate(named({{"b", ones}})); }, errors::kStructure, {"other keys"});
  expect_refused(
      [&] {
        named({{"a", ones}}).concatenate(named({{"a", ones}, {"b", ones}}));
      },
      errors::kStructure, {"1 component and 2: float32[] and (float32[], float32[])"});
  // Sizes may differ, and an unknown spec cannot be wrong yet.
  const auto wide = from_tensor_slices(at::ones({3, 5}, at::kLong));
  EXPECT_EQ(to_string(rows.concatenate(wide).element_spec()), "int64[?]");
  EXPECT_EQ(to_string(integers.concatenate(opaque_range(2)).concatenate(rows).element_spec()), "tensor?");
  EXPECT_EQ(zip(integers, floats).to_vector().size(), 3u);
}

TEST(DatasetsInOne, MayBeALongChain) {
  auto chain = range(1);
  for (int i = 0; i < 3000; ++i) chain = chain.concatenate(range(1));
  EXPECT_EQ(to_string(chain.element_spec()), "int64[]");
  EXPECT_EQ(values_of(chain.skip(2999)), (std::vector<std::int64_t>{0, 0}));
  expect_refused([&] { chain.concatenate(from_tensor_slices(at::ones({3}))); }, errors::kStructure, {"component 0"});
}

TEST(Sources, RefuseTensorsWithoutRowsOrValues) {
  expect_refused([] { from_tensors(at::Tensor()); }, errors::kShape,
                 {"component 0 is an undefined tensor", "from_tensors"});
  expect_refused([] { from_tensors(Pair{at::ones({2}), at::Tensor()}); }, errors::kShape, {"component 1"});
  expect_refused(
      [] {
        from_tensor_slices(Pair{at::ones({2}), at::Tensor()});
      },
      errors::kShape, {"component 1", "from_tensor_slices"});
  expect_refused(
      [] {
        from_tensor_slices(std::vector<at::Tensor>{at::ones({2}), at::Tensor()});
      },
      errors::kShape, {"component 1"});
  expect_refused(
      [] {
        from_tensor_slices(at::eye(4).to_sparse_bsr({2, 2}));
      },
      errors::kShape,
      {"component 0 has a layout from which rows cannot be taken", "float32[4, 4] of layout SparseBsr", "to_dense()"});
  expect_refused([] { from_tensor_slices(at::eye(3).to_sparse()).padded_batch(2); }, errors::kShape,
                 {"padded_batch takes dense tensors, component 0 is sparse", "sparse float32[3]", "to_dense()"});
  EXPECT_TRUE(from_tensors(at::eye(3).to_sparse()).to_vector().at(0).is_sparse());
  EXPECT_EQ(from_tensor_slices(at::ones({1, 2})).to_string(), "from_tensor_slices(1 row: float32[2])\n");
}

TEST(Numbers, ThatAreRefusedComeWithOnesThatAreNot) {
  const auto same = [](const at::Tensor& x) { return x; };
  const struct {
    const char* name;
    std::function<void()> build;
  } kTable[] = {
      {"prefetch", [] { range(3).prefetch(-2); }},
      {"shuffle", [] { range(3).shuffle(0); }},
      {"range", [] { range(0, 3, 0); }},
      {"take", [] { range(3).take(-2); }},
      {"skip", [] { range(3).skip(-2); }},
      {"repeat", [] { range(3).repeat(-2); }},
      {"too many calls", [&] { range(3).map(same, {.parallel_calls = 100'000}); }},
      {"too few calls", [&] { range(3).map(same, {.parallel_calls = -1}); }},
      {"skip of an iterator", [] { range(3).iterator().skip(-3); }},
      {"interleave", [] { range(3).interleave([](const at::Tensor&) { return range(1); }, {.parallel_calls = -1}); }},
  };
  for (const auto& row : kTable) {
    try {
      row.build();
      ADD_FAILURE() << row.name << " accepted";
    } catch (const InvalidArgument& error) {
      EXPECT_EQ(error.number(), errors::kBadOption);
      EXPECT_FALSE(error.text().where.empty()) << row.name;
      EXPECT_FALSE(error.text().help.empty()) << row.name;
    }
  }
}

TEST(Numbers, OfWindowsMayBeAsLargeAsTheyLike) {
  constexpr std::int64_t kMost = std::numeric_limits<std::int64_t>::max();
  const struct {
    std::int64_t size;
    WindowOptions options;
    Rows expected;
  } kTable[] = {
      {3, {.shift = kMost}, {{0, 1, 2}}},
      {3, {.shift = kMost - 5}, {{0, 1, 2}}},
      {kMost, {.stride = 2}, {{0, 2, 4}}},
      {(std::int64_t{1} << 32) + 1, {.shift = 3, .stride = std::int64_t{1} << 32}, {{0}, {3}}},
      {(std::int64_t{1} << 32) + 1, {.shift = 3, .stride = std::int64_t{1} << 32, .drop_remainder = true}, {}},
      {kMost, {.shift = 1, .stride = 3, .drop_remainder = true}, {}},
      {2, {.shift = 1, .stride = kMost}, {{0}, {1}, {2}, {3}, {4}}},
  };
  for (const auto& row : kTable) {
    const auto windows = range(5).window(row.size, row.options);
    EXPECT_EQ(windows.cardinality(), Cardinality(std::ssize(row.expected))) << row.size;
    EXPECT_EQ(rows_of(windows.flat_map([](const Dataset<at::Tensor>& window) { return window.batch(10); })),
              row.expected)
        << row.size;
  }
}

TEST(Numbers, OfWeightsMayAddUpToMoreThanANumberHolds) {
  const auto sampled = [](double weight) {
    return values_of(
        sample_from_datasets<at::Tensor>({range(50), range(100, 150)}, {.weights = {weight, weight}, .seed = 3}));
  };
  EXPECT_EQ(sampled(1e308), sampled(1.0));
}

TEST(Batches, MustHaveRowsToBeCutAnew) {
  expect_refused([] { range(4).rebatch(2); }, errors::kShape, {"first dimension", "component 0 is int64[]", "rebatch"});
  expect_refused([] { range(4).unbatch(); }, errors::kShape, {"component 0 is int64[]", "unbatch"});
  expect_refused([] { zip(range(4).batch(2), range(4)).unbatch(); }, errors::kShape, {"component 1 is int64[]"});
  expect_refused(
      [] {
        from_tensors(Pair{at::ones({3}), at::ones({4})}).rebatch(2);
      },
      errors::kShape, {"same number of rows", "(float32[3], float32[4])"});
  const auto scalars = opaque_range(4).rebatch(2);
  EXPECT_THROW(scalars.to_vector(), InvalidArgument) << "the spec was unknown";
}

}  // namespace
}  // namespace lockstep::data
