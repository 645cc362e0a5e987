#include "lockstep/values/reducible.h"

#include <ATen/ops/ones.h>
#include <ATen/ops/scalar_tensor.h>
#include <gtest/gtest.h>

#include <cmath>
#include <functional>

#include "lockstep/values/per_replica.h"
#include "tests/support/errors.h"

namespace lockstep {
namespace {

struct Metrics {
  at::Tensor loss;
  int hits;
  float rate;
};

std::vector<at::ScalarType> dtypes_of(const std::vector<ReducibleLeaf>& leaves) {
  std::vector<at::ScalarType> dtypes;
  for (const auto& leaf : leaves) dtypes.push_back(std::get<at::Tensor>(leaf).scalar_type());
  return dtypes;
}

ReducibleLeaf number(double value, at::ScalarType dtype = at::kDouble) { return at::scalar_tensor(value, dtype); }

TEST(Reducible, NumbersBecomeTensorsWithoutDimensions) {
  const auto leaves = flatten_reducible(std::tuple{true, 1, std::uint8_t{2}, 1.5F, 2.5, int64_t{3}});
  EXPECT_EQ(dtypes_of(leaves), (std::vector{at::kLong, at::kLong, at::kLong, at::kFloat, at::kDouble, at::kLong}));
  for (const auto& leaf : leaves) EXPECT_EQ(std::get<at::Tensor>(leaf).dim(), 0);
}

TEST(Reducible, TensorsAndSlicesAreTakenAsTheyAre) {
  const at::Tensor tensor = at::ones({2});
  const IndexedSlices slices{.values = at::ones({1, 2}), .indices = at::ones({1}, at::kLong), .dense_shape = {3, 2}};
  const auto leaves = flatten_reducible(std::pair{tensor, slices});
  EXPECT_TRUE(std::get<at::Tensor>(leaves[0]).is_same(tensor));
  EXPECT_TRUE(std::get<IndexedSlices>(leaves[1]).values.is_same(slices.values));
}

TEST(Reducible, AnAggregateComesBackWithItsTypes) {
  const Metrics metrics{at::ones({}), 3, 0.5F};
  const Metrics back = unflatten_reducible(metrics, {at::ones({}).mul(2), number(6, at::kLong), number(1, at::kFloat)});
  EXPECT_EQ(back.loss.item<float>(), 2);
  EXPECT_EQ(back.hits, 6);
  EXPECT_EQ(back.rate, 1.0F);
}

TEST(Reducible, AnIntegralMeanIsAnInteger) {
  EXPECT_EQ(unflatten_reducible(4, {number(2.0)}), 2);
  EXPECT_EQ(unflatten_reducible(true, {number(1, at::kLong)}), true);
}

TEST(Reducible, AMeanThatIsNoIntegerAsksForDouble) {
  const SeenError error = error_of([] { unflatten_reducible(std::pair{1.0, 3}, {number(1), number(2.5)}); });
  EXPECT_EQ(error.code, Code::InvalidArgument);
  EXPECT_EQ(error.parts.where, "leaf [1]");
  EXPECT_NE(error.parts.what.find("2.5"), std::string::npos);
  EXPECT_NE(error.parts.help.find("pass a double"), std::string::npos);
}

struct Range {
  const char* name;
  std::function<void()> call;
};

class OutOfItsType : public ::testing::TestWithParam<Range> {};

TEST_P(OutOfItsType, IsAnError) { EXPECT_EQ(error_of(GetParam().call).code, Code::InvalidArgument); }

INSTANTIATE_TEST_SUITE_P(
    Table, OutOfItsType,
    ::testing::Values(Range{"bool", [] { unflatten_reducible(true, {number(2, at::kLong)}); }},
                      Range{"uint8", [] { unflatten_reducible(std::uint8_t{1}, {number(256, at::kLong)}); }},
                      Range{"int8", [] { unflatten_reducible(std::int8_t{1}, {number(-129, at::kLong)}); }},
                      Range{"unsigned", [] { unflatten_reducible(1U, {number(-1, at::kLong)}); }},
                      Range{"int", [] { unflatten_reducible(1, {number(3e9, at::kLong)}); }},
                      Range{"int64", [] { unflatten_reducible(int64_t{1}, {number(1e30)}); }},
                      Range{"nan", [] { unflatten_reducible(1, {number(NAN)}); }},
                      Range{"too_large", [] { flatten_reducible(~uint64_t{0}); }},
                      Range{"vector", [] { unflatten_reducible(1, {at::ones({2})}); }}),
    [](const auto& given) { return given.param.name; });

TEST(Reducible, OtherLeavesAreNamedWithPathAndType) {
  const SeenError error = error_of([] { flatten_reducible(std::tuple{1, std::vector{std::string("x")}}); });
  EXPECT_EQ(error.number, errors::kNotReducible);
  EXPECT_EQ(error.parts.what, "a value of type str cannot be reduced");
  EXPECT_EQ(error.parts.where, "leaf [1][0]");
}

TEST(Reducible, ADistributedValueIsNoLeafToReduce) {
  const SeenError error = error_of([] { flatten_reducible(std::vector{PerReplica<int>({1})}); });
  EXPECT_EQ(error.number, errors::kNotReducible);
}

TEST(Reducible, EmptyStructuresGiveNothingAndComeBack) {
  EXPECT_TRUE(flatten_reducible(std::vector<at::Tensor>{}).empty());
  EXPECT_EQ(unflatten_reducible(std::tuple{}, {}), std::tuple{});
}

TEST(Reducible, AWrongNumberOfLeavesIsABug) {
  EXPECT_EQ(error_of([] { unflatten_reducible(1, {}); }).code, Code::Internal);
  EXPECT_EQ(error_of([] { unflatten_reducible(std::tuple{}, {number(1)}); }).code, Code::Internal);
  EXPECT_EQ(error_of([] { unflatten_reducible(1, {IndexedSlices{}}); }).code, Code::Internal);
}

}  // namespace
}  // namespace lockstep
