#include "lockstep/comm/ordered_sum.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <limits>
#include <random>
#include <span>
#include <string>
#include <vector>

#include "lockstep/base/error.h"
#include "lockstep/base/text.h"
#include "tests/support/errors.h"
#include "tests/support/sum_reference.h"

namespace lockstep {
namespace {

template <Dtype kDtype>
using StoredAs = typename reference::Of<kDtype>::Stored;

template <Dtype kDtype>
struct Arrays {
  using Ref = reference::Of<kDtype>;
  using Stored = typename Ref::Stored;
  using Array = std::vector<Stored>;

  // `offset` elements before each array misalign it.
  Arrays(int count, std::size_t elements, std::size_t offset = 0) : length(elements), shift(offset) {
    std::mt19937_64 random(1);
    for (int k = 0; k < count; ++k) {
      Array& array = arrays.emplace_back(shift + length);
      for (auto& element : array) element = Ref::random(random);
    }
  }

  Stored* data(int k) { return arrays[static_cast<std::size_t>(k)].data() + shift; }
  int count() const { return static_cast<int>(arrays.size()); }
  std::vector<const void*> inputs() {
    std::vector<const void*> result;
    for (int k = 0; k < count(); ++k) result.push_back(data(k));
    return result;
  }

  // The one order of summation, written out independently.
  Stored tree(int lo, int hi, std::size_t i) {
    if (hi - lo == 1) return data(lo)[i];
    int half = 1;
    while (2 * half < hi - lo) half *= 2;
    return Ref::add(tree(lo, lo + half, i), tree(lo + half, hi, i));
  }
  Array expected(std::int64_t divisor = 1) {
    Array result(length);
    for (std::size_t i = 0; i < length; ++i) {
      result[i] = tree(0, count(), i);
      if constexpr (is_floating(kDtype)) {
        if (divisor != 1) result[i] = Ref::divide(result[i], divisor);
      }
    }
    return result;
  }

  std::size_t length;
  std::size_t shift;
  std::vector<Array> arrays;
};

template <Dtype kDtype, class Stored>
void expect_same(std::span<const Stored> got, std::span<const Stored> want, const std::string& what) {
  ASSERT_EQ(got.size(), want.size()) << what;
  for (std::size_t i = 0; i < got.size(); ++i) {
    ASSERT_TRUE(reference::Of<kDtype>::same(got[i], want[i]))
        << what << ", element " << i << ": " << got[i] << " is not " << want[i];
  }
}

template <Dtype kDtype>
struct DtypeTag {
  static constexpr Dtype value = kDtype;
};

struct DtypeNames {
  template <class Tag>
  static std::string GetName(int) {
    return std::string(to_string(Tag::value));
  }
};

template <class Tag>
class OrderedSum : public ::testing::Test {};

using SummableDtypes = ::testing::Types<DtypeTag<Dtype::UInt8>, DtypeTag<Dtype::Int8>, DtypeTag<Dtype::Int16>,
                                        DtypeTag<Dtype::Int32>, DtypeTag<Dtype::Int64>, DtypeTag<Dtype::Float16>,
                                        DtypeTag<Dtype::BFloat16>, DtypeTag<Dtype::Float32>, DtypeTag<Dtype::Float64>>;
TYPED_TEST_SUITE(OrderedSum, SummableDtypes, DtypeNames);

constexpr std::size_t kShortLengths[] = {0, 1, 2, 3, 7, 63, 64, 65, 1000, 1001};
constexpr std::size_t kLongLengths[] = {4099, 65537};

template <Dtype kDtype>
void check_sum(int count, std::size_t length) {
  using Stored = StoredAs<kDtype>;
  Arrays<kDtype> arrays(count, length);
  const auto expected = arrays.expected();
  std::vector<Stored> result(length);
  void* const outputs[] = {result.data()};
  ordered_sum(kDtype, arrays.inputs().data(), count, outputs, 1, length);
  expect_same<kDtype, Stored>(result, expected, std::to_string(count) + " arrays of " + std::to_string(length));
}

TYPED_TEST(OrderedSum, IsTheTreeForAnyCountAndLength) {
  for (int count = 1; count <= 17; ++count) {
    for (const auto length : kShortLengths) check_sum<TypeParam::value>(count, length);
  }
  for (const int count : {2, 9}) {
    for (const auto length : kLongLengths) check_sum<TypeParam::value>(count, length);
  }
}

TYPED_TEST(OrderedSum, OfManyInputsStillFitsTheStack) { check_sum<TypeParam::value>(1000, 65); }

TYPED_TEST(OrderedSum, MayReplaceAnyOfItsInputs) {
  constexpr Dtype kDtype = TypeParam::value;
  using Stored = StoredAs<kDtype>;
  for (const int count : {1, 2, 3, 4, 5, 8, 9, 12, 17}) {
    for (int replaced = 0; replaced < count; ++replaced) {
      Arrays<kDtype> arrays(count, 1100);
      const auto expected = arrays.expected();
      const auto inputs = arrays.inputs();
      void* const outputs[] = {arrays.data(replaced)};
      ordered_sum(kDtype, inputs.data(), count, outputs, 1, arrays.length);
      expect_same<kDtype, Stored>({arrays.data(replaced), arrays.length}, expected,
                                  "input " + std::to_string(replaced) + " of " + std::to_string(count));
    }
  }
}

TYPED_TEST(OrderedSum, MayReplaceAllOfItsInputs) {
  constexpr Dtype kDtype = TypeParam::value;
  using Stored = StoredAs<kDtype>;
  for (const int count : {1, 2, 3, 4, 9}) {
    Arrays<kDtype> arrays(count, 1100);
    const auto expected = arrays.expected();
    const auto inputs = arrays.inputs();
    std::vector<void*> outputs;
    for (int k = count - 1; k >= 0; --k) outputs.push_back(arrays.data(k));
    ordered_sum(kDtype, inputs.data(), count, outputs.data(), count, arrays.length);
    for (int k = 0; k < count; ++k) {
      expect_same<kDtype, Stored>({arrays.data(k), arrays.length}, expected, "output " + std::to_string(k));
    }
  }
}

TYPED_TEST(OrderedSum, WritesEveryOutputAndNothingBehindIt) {
  constexpr Dtype kDtype = TypeParam::value;
  using Stored = StoredAs<kDtype>;
  constexpr std::size_t kLength = 1001;
  Arrays<kDtype> arrays(2, kLength);
  const auto expected = arrays.expected();
  const auto mark = static_cast<Stored>(77);
  std::vector<Stored> other(kLength + 16, mark);
  void* const outputs[] = {other.data(), arrays.data(1), other.data()};  // listing one twice is harmless
  ordered_sum(kDtype, arrays.inputs().data(), 2, outputs, 3, kLength);
  expect_same<kDtype, Stored>({other.data(), kLength}, expected, "a new array");
  expect_same<kDtype, Stored>({arrays.data(1), kLength}, expected, "an input");
  for (std::size_t i = kLength; i < other.size(); ++i) EXPECT_EQ(other[i], mark);
}

TYPED_TEST(OrderedSum, DoesNotDependOnWhereTheRangeIsCut) {
  constexpr Dtype kDtype = TypeParam::value;
  using Stored = StoredAs<kDtype>;
  constexpr std::size_t kLength = 10007;
  std::mt19937_64 random(5);
  for (const int count : {2, 3, 7, 11}) {
    Arrays<kDtype> arrays(count, kLength);
    const auto inputs = arrays.inputs();
    std::vector<Stored> whole(kLength);
    void* const outputs[] = {whole.data()};
    ordered_sum(kDtype, inputs.data(), count, outputs, 1, kLength);
    std::vector<Stored> pieces(kLength);
    for (std::size_t begin = 0; begin < kLength;) {
      const auto length = std::min<std::size_t>(kLength - begin, 1 + random() % 1500);
      std::vector<const void*> from;
      for (int k = 0; k < count; ++k) from.push_back(arrays.data(k) + begin);
      void* const to[] = {pieces.data() + begin};
      ordered_sum(kDtype, from.data(), count, to, 1, length);
      begin += length;
    }
    expect_same<kDtype, Stored>(pieces, whole, std::to_string(count) + " arrays");
  }
}

TYPED_TEST(OrderedSum, DoesNotDependOnAlignment) {
  constexpr Dtype kDtype = TypeParam::value;
  using Stored = StoredAs<kDtype>;
  for (std::size_t shift = 0; shift < 9; ++shift) {
    Arrays<kDtype> arrays(3, 131, shift);
    const auto expected = arrays.expected();
    std::vector<Stored> result(131 + 3 * shift);
    void* const outputs[] = {result.data() + 3 * shift};
    ordered_sum(kDtype, arrays.inputs().data(), 3, outputs, 1, arrays.length);
    expect_same<kDtype, Stored>({result.data() + 3 * shift, arrays.length}, expected, "shift " + std::to_string(shift));
  }
}

template <class Tag>
class OrderedMean : public ::testing::Test {};

using FloatingDtypes = ::testing::Types<DtypeTag<Dtype::Float16>, DtypeTag<Dtype::BFloat16>, DtypeTag<Dtype::Float32>,
                                        DtypeTag<Dtype::Float64>>;
TYPED_TEST_SUITE(OrderedMean, FloatingDtypes, DtypeNames);

TYPED_TEST(OrderedMean, IsOneRoundedDivisionOfTheSum) {
  constexpr Dtype kDtype = TypeParam::value;
  using Stored = StoredAs<kDtype>;
  for (int count = 1; count <= 12; ++count) {
    Arrays<kDtype> arrays(count, 4099);
    const auto expected = arrays.expected(count);
    const auto inputs = arrays.inputs();
    std::vector<Stored> other(arrays.length);
    void* const outputs[] = {arrays.data(0), other.data()};
    ordered_sum(kDtype, inputs.data(), count, outputs, 2, arrays.length, count);
    expect_same<kDtype, Stored>({arrays.data(0), arrays.length}, expected, "mean of " + std::to_string(count));
    expect_same<kDtype, Stored>(other, expected, "second output of " + std::to_string(count));
  }
}

TYPED_TEST(OrderedMean, DividesByAnyNumber) {
  constexpr Dtype kDtype = TypeParam::value;
  using Stored = StoredAs<kDtype>;
  for (const std::int64_t divisor : {1, 2, 3, 5, 8, 1000, 1024}) {
    Arrays<kDtype> arrays(2, 1001, 1);
    const auto expected = arrays.expected(divisor);
    std::vector<Stored> result(arrays.length);
    void* const outputs[] = {result.data()};
    ordered_sum(kDtype, arrays.inputs().data(), 2, outputs, 1, arrays.length, divisor);
    expect_same<kDtype, Stored>(result, expected, "divisor " + std::to_string(divisor));
  }
}

TYPED_TEST(OrderedMean, CarriesInfinityAndNan) {
  constexpr Dtype kDtype = TypeParam::value;
  using Stored = StoredAs<kDtype>;
  const auto stored = reference::Of<kDtype>::stored;
  const double inf = std::numeric_limits<double>::infinity();
  const double nan = std::numeric_limits<double>::quiet_NaN();
  const double table[][3] = {{1, inf, inf}, {-inf, 5, -inf}, {inf, -inf, nan},
                             {nan, 1, nan}, {1, nan, nan},   {inf, nan, nan}};
  for (const auto& [a, b, sum] : table) {
    const std::vector<Stored> x(9, stored(a));
    const std::vector<Stored> y(9, stored(b));
    const std::vector<Stored> expected(9, stored(sum));
    std::vector<Stored> result(9);
    const void* const inputs[] = {x.data(), y.data()};
    void* const outputs[] = {result.data()};
    for (const std::int64_t divisor : {1, 2, 3}) {
      ordered_sum(kDtype, inputs, 2, outputs, 1, 9, divisor);
      expect_same<kDtype, Stored>(result, expected, std::to_string(a) + " + " + std::to_string(b));
    }
  }
}

TEST(OrderedSumOfIntegers, WrapsAround) {
  const std::int32_t most = std::numeric_limits<std::int32_t>::max();
  const std::int32_t one = 1;
  std::int32_t result = 0;
  const void* const inputs[] = {&most, &one};
  void* const outputs[] = {&result};
  ordered_sum(Dtype::Int32, inputs, 2, outputs, 1, 1);
  EXPECT_EQ(result, std::numeric_limits<std::int32_t>::min());
}

TEST(OrderedSumOfFloats, RoundsAtEachNodeInTreeOrder) {
  // From left to right every 1 would be lost in 2^24; as a tree the last two meet first.
  const float values[] = {0x1p24f, 1, 1, 1};
  float result = 0;
  const void* const inputs[] = {&values[0], &values[1], &values[2], &values[3]};
  void* const outputs[] = {&result};
  ordered_sum(Dtype::Float32, inputs, 4, outputs, 1, 1);
  EXPECT_EQ(result, 0x1p24f + 2);
}

TEST(OrderedSumArguments, ThatMakeNoSenseAreRefused) {
  struct Row {
    Dtype dtype;
    int count, output_count;
    std::int64_t divisor;
    int number;
  };
  for (const auto& row :
       {Row{Dtype::Bool, 2, 1, 1, errors::kDtype}, Row{Dtype::Int32, 2, 1, 2, errors::kDtype},
        Row{Dtype::Float32, 0, 1, 1, errors::kBadOption}, Row{Dtype::Float32, 2, 0, 1, errors::kBadOption},
        Row{Dtype::Float32, 2, 1, 0, errors::kBadOption}, Row{Dtype::Float32, 2, 1, -3, errors::kBadOption}}) {
    SCOPED_TRACE(str(to_string(row.dtype), " ", row.count, " ", row.divisor));
    const SeenError seen = error_of([&] { check_ordered_sum(row.dtype, row.count, row.output_count, row.divisor); });
    EXPECT_EQ(seen.code, Code::InvalidArgument);
    EXPECT_EQ(seen.number, row.number) << seen.text;
    EXPECT_THROW(ordered_sum(row.dtype, nullptr, row.count, nullptr, row.output_count, 1, row.divisor),
                 InvalidArgument);
  }
  EXPECT_NO_THROW(check_ordered_sum(Dtype::Int32, 1, 1));
}

}  // namespace
}  // namespace lockstep
