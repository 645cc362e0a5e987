#include "lockstep/data/dataset.h"

#include <ATen/ops/arange.h>
#include <ATen/ops/complex.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/imag.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/rand.h>
#include <ATen/ops/zeros.h>
#include <gtest/gtest.h>

#include <functional>
#include <limits>

#include "lockstep/base/error.h"
#include "tests/support/datasets.h"

namespace lockstep::data {
namespace {

using Values = std::vector<std::int64_t>;

struct Digits {
  at::Tensor image, label;
};

TEST(Dataset, RangeIsBatchedWithARemainder) {
  EXPECT_EQ(rows_of(range(7).batch(3)), (Rows{{0, 1, 2}, {3, 4, 5}, {6}}));
  EXPECT_EQ(rows_of(range(7).batch(3, {.drop_remainder = true})), (Rows{{0, 1, 2}, {3, 4, 5}}));
}

TEST(Dataset, MapTakesElementsAndParts) {
  const auto squares = range(4).map([](const at::Tensor& x) { return x * x; });
  EXPECT_EQ(rows_of(squares.batch(4)), (Rows{{0, 1, 4, 9}}));
  const auto sums = range(4)
                        .map([](at::Tensor x) {
                          return std::pair{x, x * 10};
                        })
                        .map([](const at::Tensor& a, const at::Tensor& b) { return a + b; });
  EXPECT_EQ(rows_of(sums.batch(8)), (Rows{{0, 11, 22, 33}}));
}

TEST(Dataset, SlicesOfAStructKeepTheStruct) {
  const Digits all{at::rand({5, 2, 2}), at::arange(5)};
  const auto batches = from_tensor_slices(all).batch(2).to_vector();
  ASSERT_EQ(batches.size(), 3u);
  EXPECT_TRUE(at::equal(batches[1].image, all.image.slice(0, 2, 4)));
  EXPECT_EQ(integers(batches[2].label), (std::vector<std::int64_t>{4}));
}

TEST(Dataset, MapsAndVectorsKeepTheirKeysAndLengths) {
  const std::map<std::string, at::Tensor> columns{{"a", at::arange(3)}, {"b", at::arange(3) * 2}};
  const auto rows = from_tensor_slices(columns).batch(2).to_vector();
  ASSERT_EQ(rows.size(), 2u);
  EXPECT_EQ(integers(rows[1].at("b")), (std::vector<std::int64_t>{4}));
}

TEST(Dataset, StringsBecomeStringsWhenBatched) {
  const auto names = from_tensor_slices(std::vector<std::string>{"x", "y", "z"});
  static_assert(std::is_same_v<decltype(names.batch(2))::value_type, Strings>);
  EXPECT_EQ(names.batch(2).to_vector(), (std::vector<Strings>{{"x", "y"}, {"z"}}));
}

TEST(Dataset, WritingIntoARowLeavesTheSourceAlone) {
  const at::Tensor source = at::ones({4, 3});
  from_tensor_slices(source).map([](at::Tensor row) { return row.mul_(0); }).to_vector();
  EXPECT_EQ(source.sum().item<float>(), 12);
}

TEST(Dataset, GeneratorsStartAnewForEachPass) {
  const auto three = from_generator(
      [] { return [i = std::int64_t{0}]() mutable { return i < 3 ? std::optional(i++) : std::nullopt; }; });
  EXPECT_EQ(three.to_vector(), (std::vector<std::int64_t>{0, 1, 2}));
  EXPECT_EQ(three.to_vector(), (std::vector<std::int64_t>{0, 1, 2}));
}

TEST(Dataset, AVectorOfTensorsIsOneComponent) {
  const auto rows = from_tensor_slices(std::vector<at::Tensor>{at::arange(2), at::arange(2) + 5});
  EXPECT_EQ(rows_of(rows), (Rows{{0, 1}, {5, 6}}));
}

TEST(Dataset, SpecsAndTree) {
  const auto batches = from_tensor_slices(std::pair{at::rand({6, 4}), at::arange(6)}).batch(4);
  EXPECT_EQ(to_string(batches.element_spec()), "(float32[?, 4], int64[?])");
  EXPECT_EQ(batches.cardinality(), Cardinality(2));
  EXPECT_EQ(batches.to_string(), "batch(4)\n└─ from_tensor_slices(6 rows: (float32[4], int64[]))\n");
}

TEST(Dataset, RowsThatDoNotFitAreNamed) {
  const auto ragged = range(3).map([](const at::Tensor& x) { return at::zeros({x.item<std::int64_t>()}); }).batch(3);
  try {
    ragged.to_vector();
    FAIL() << "no error";
  } catch (const InvalidArgument& error) {
    EXPECT_NE(std::string(error.what()).find("row 1 is float32[1]"), std::string::npos) << error.what();
    EXPECT_NE(std::string(error.what()).find("batch(3)"), std::string::npos) << error.what();
  }
}

TEST(Dataset, AnEmptyDatasetIsRefusedWhereverItIsUsed) {
  using Numbers = Dataset<at::Tensor>;
  const Numbers empty;
  const std::vector<std::function<void()>> uses = {
      [&] { empty.iterator(); },
      [&] { empty.to_vector(); },
      [&] { empty.to_string(); },
      [&] { empty.cardinality(); },
      [&] { empty.batch(2); },
      [&] { empty.map([](at::Tensor x) { return x; }); },
      [&] { range(2).concatenate(empty); },
      [&] { zip(range(2), empty); },
      [&] {
        sample_from_datasets<at::Tensor>({range(2), empty});
      },
      [&] { range(2).flat_map([](const at::Tensor&) { return Numbers(); }).to_vector(); },
      [&] { range(2).map([](const at::Tensor&) { return Numbers(); }).to_vector(); }};
  for (std::size_t i = 0; i < uses.size(); ++i) {
    try {
      uses[i]();
      ADD_FAILURE() << "use " << i;
    } catch (const FailedPrecondition& error) {
      EXPECT_EQ(error.number(), errors::kStructure);
      EXPECT_NE(std::string(error.what()).find("this Dataset is empty"), std::string::npos) << error.what();
    }
  }
}

TEST(Dataset, ArgumentsThatMakeNoSenseAreRefused) {
  const auto expand = [](const at::Tensor&) { return range(2); };
  EXPECT_THROW(range(3).interleave(expand, {.parallel_calls = -1}), InvalidArgument);
  EXPECT_THROW(from_tensor_slices(at::Tensor()), InvalidArgument);
  EXPECT_THROW(from_tensor_slices(std::pair{at::arange(3), at::Tensor()}), InvalidArgument);
}

TEST(Dataset, CardinalitiesAndAssertions) {
  EXPECT_EQ(range(10).shuffle(3).batch(4).repeat(3).take(5).cardinality(), Cardinality(5));
  EXPECT_EQ(range(10).repeat().cardinality(), Cardinality::infinite());
  EXPECT_EQ(range(10).repeat().batch(3).skip(4).cardinality(), Cardinality::infinite());
  EXPECT_EQ(range(10).filter([](const at::Tensor&) { return true; }).cardinality(), Cardinality::unknown());
  EXPECT_EQ(zip(range(3), range(9).repeat()).cardinality(), Cardinality(3));
  EXPECT_EQ(range(10).shard(4, 1).cardinality(), Cardinality(3));
  const auto few = range(3).filter([](const at::Tensor&) { return true; });
  EXPECT_EQ(values_of(few.assert_cardinality(3)), counting(3));
  EXPECT_THROW(values_of(few.assert_cardinality(4)), FailedPrecondition);
  EXPECT_THROW(values_of(few.assert_cardinality(2)), FailedPrecondition);
}

TEST(Dataset, TheTreeIsPrinted) {
  const auto a = range(4).shuffle(2, {.seed = 1});
  EXPECT_EQ(zip(a, range(3).repeat()).batch(2).prefetch(1).to_string(),
            "prefetch(1)\n└─ batch(2)\n   └─ zip\n      ├─ shuffle(2, seed 1)\n      │  └─ range(4)\n"
            "      └─ repeat\n         └─ range(3)\n");
}

struct Named {
  std::string name;
  at::Tensor value;
};
struct Counted {
  at::Tensor value;
  std::pair<int, at::Tensor> count;
};
struct NamedBatch {
  Strings names;
  std::vector<at::Tensor> values;
};

// `Dataset<Named>::batch` does not compile.
static_assert(!detail::can_be_batched_v<Named> && !detail::can_be_batched_v<Counted>);
static_assert(!detail::can_be_batched_v<std::map<std::string, Named>> && !detail::has_rows_v<NamedBatch>);
static_assert(detail::can_be_batched_v<std::tuple<std::string, int, at::Tensor>> &&
              detail::can_be_batched_v<NamedBatch>);
static_assert(detail::has_rows_v<Named> && detail::has_rows_v<std::pair<Strings, at::Tensor>>);

TEST(Dataset, TypesSayWhatElementsLookLike) {
  const auto spec = [](const auto& dataset) { return to_string(dataset.element_spec()); };
  EXPECT_EQ(spec(range(3).map([](at::Tensor x) { return x; })), "tensor?");
  EXPECT_EQ(spec(range(3).map([](const at::Tensor& x) { return std::tuple(x, 1.5f, std::int64_t{2}, std::string()); })),
            "(tensor?, float32[], int64[], bytes[])");
  EXPECT_EQ(spec(range(3).map([](const at::Tensor&) { return true; }).batch(2)), "bool[?]");
  EXPECT_EQ(spec(range(3).map([](const at::Tensor& x) { return Named{"", x}; })), "(bytes[], tensor?)");
  EXPECT_EQ(spec(range(3).flat_map([](const at::Tensor& x) {
              return from_tensors(std::array{x, x});
            })),
            "(tensor?, tensor?)");
  EXPECT_EQ(spec(range(3).map([](const at::Tensor& x) { return std::vector{x}; })), "unknown");
}

TEST(Dataset, MoreElementsThanCanBeCountedAreInfinitelyMany) {
  constexpr auto kMost = std::numeric_limits<std::int64_t>::max();
  const auto many = range(kMost);
  EXPECT_TRUE(many.repeat(3).cardinality().is_infinite());
  EXPECT_TRUE(range(1'000'000).repeat(kMost).cardinality().is_infinite());
  EXPECT_TRUE(many.repeat(3).concatenate(many).cardinality().is_infinite());
  EXPECT_EQ(values_of(range(-kMost, kMost, 2).take(2)), (Values{-kMost, -kMost + 2}));
  EXPECT_EQ(values_of(range(kMost, -kMost, -kMost)), (Values{kMost, 0}));
  EXPECT_EQ(values_of(range(3).repeat(kMost).skip(kMost / 2 / 3 * 3 + 1).take(2)), (Values{1, 2}));
}

TEST(Dataset, SlicesReadTheMemoryTheyWereGiven) {
  const at::Tensor given = at::zeros({3}, at::kLong);
  const auto shared = from_tensor_slices(given), apart = from_tensor_slices(given.clone());
  given.fill_(1);
  EXPECT_EQ(values_of(shared), (Values{1, 1, 1}));
  EXPECT_EQ(values_of(apart), (Values{0, 0, 0}));
  const auto conjugated = at::complex(at::ones({2}), at::ones({2})).conj();
  for (const auto& row : from_tensor_slices(conjugated)) EXPECT_EQ(at::imag(row).item<float>(), -1);
  for (const auto& rows : range(2).map([&](const at::Tensor&) { return conjugated; }).batch(2))
    EXPECT_EQ(at::imag(rows).sum().item<float>(), -4);
}

}  // namespace
}  // namespace lockstep::data
