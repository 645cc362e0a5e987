#include "lockstep/strategy/kernels/matrix_product.h"

#include <gtest/gtest.h>

#include <cmath>
#include <tuple>
#include <vector>

#include "tests/support/kernel_reference.h"

namespace lockstep::kernels {
namespace {

using namespace testing_support;

/// Rows, inner, columns, and which of the operands are stored by columns.
class MatrixProductTest
    : public testing::TestWithParam<std::tuple<std::int64_t, std::int64_t, std::int64_t, bool, bool>> {};

TEST_P(MatrixProductTest, EqualsTheDefinition) {
  const auto [rows, inner, columns, a_by_columns, b_by_columns] = GetParam();
  const auto a_values = random_values(rows * inner, 3), b_values = random_values(inner * columns, 4);
  const MatrixView a = view_of(a_values, rows, inner, a_by_columns),
                   b = view_of(b_values, inner, columns, b_by_columns);
  const std::int64_t stride = columns + 3;  // what lies between the rows of c is not touched
  std::vector<float> c(static_cast<std::size_t>(rows * stride), NAN),
      more(static_cast<std::size_t>(rows * stride), 2.0F);
  matrix_product(rows, inner, columns, a, b, c.data(), stride, /*accumulate=*/false);
  matrix_product(rows, inner, columns, a, b, more.data(), stride, /*accumulate=*/true);
  const double tolerance = tolerance_of(inner);
  for (std::int64_t i = 0; i < rows; ++i) {
    for (std::int64_t j = 0; j < columns; ++j) {
      const double sum = product_at(a, b, inner, i, j);
      ASSERT_NEAR(c[static_cast<std::size_t>(i * stride + j)], sum, tolerance) << i << ", " << j;
      ASSERT_NEAR(more[static_cast<std::size_t>(i * stride + j)], sum + 2, tolerance) << i << ", " << j;
    }
    for (std::int64_t j = columns; j < stride; ++j) {
      ASSERT_TRUE(std::isnan(c[static_cast<std::size_t>(i * stride + j)]));
      ASSERT_EQ(more[static_cast<std::size_t>(i * stride + j)], 2.0F);
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Small, MatrixProductTest,
                         testing::Combine(testing::Values(0, 1, 8, 13), testing::Values(0, 1, 5, 12),
                                          testing::Values(0, 1, 12, 29), testing::Bool(), testing::Bool()));
INSTANTIATE_TEST_SUITE_P(SeveralBlocks, MatrixProductTest,
                         testing::Combine(testing::Values(129, 264), testing::Values(385, 400),
                                          testing::Values(577, 600), testing::Bool(), testing::Bool()));

}  // namespace
}  // namespace lockstep::kernels
