#include "lockstep/nn/matrix_product.h"

#include <gtest/gtest.h>

#include <cmath>
#include <random>
#include <tuple>
#include <vector>

namespace lockstep::nn {
namespace {

/// Rows, inner, columns, and which of the operands are stored by columns.
class MatrixProductTest
    : public testing::TestWithParam<std::tuple<std::int64_t, std::int64_t, std::int64_t, bool, bool>> {};

TEST_P(MatrixProductTest, EqualsTheDefinition) {
  const auto [rows, inner, columns, a_by_columns, b_by_columns] = GetParam();
  std::mt19937 engine(3);
  std::uniform_real_distribution<float> uniform(-1, 1);
  const auto random = [&](std::int64_t count) {
    std::vector<float> values(static_cast<std::size_t>(count));
    for (float& value : values) value = uniform(engine);
    return values;
  };
  const auto a_values = random(rows * inner), b_values = random(inner * columns);
  const MatrixView a = a_by_columns ? MatrixView{a_values.data(), 1, rows} : MatrixView{a_values.data(), inner, 1};
  const MatrixView b = b_by_columns ? MatrixView{b_values.data(), 1, inner} : MatrixView{b_values.data(), columns, 1};
  const std::int64_t stride = columns + 3;  // what lies between the rows of c is not touched
  std::vector<float> c(static_cast<std::size_t>(rows * stride), NAN),
      more(static_cast<std::size_t>(rows * stride), 2.0F);
  matrix_product(rows, inner, columns, a, b, c.data(), stride, /*accumulate=*/false);
  matrix_product(rows, inner, columns, a, b, more.data(), stride, /*accumulate=*/true);
  const double tolerance = 1e-6 * (4 + 4 * std::sqrt(static_cast<double>(inner)));
  for (std::int64_t i = 0; i < rows; ++i) {
    for (std::int64_t j = 0; j < columns; ++j) {
      double sum = 0;
      for (std::int64_t k = 0; k < inner; ++k)
        sum += static_cast<double>(a.data[i * a.row_stride + k * a.column_stride]) *
               b.data[k * b.row_stride + j * b.column_stride];
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
}  // namespace lockstep::nn
