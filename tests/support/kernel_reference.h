#pragma once

#include <cmath>
#include <cstdint>
#include <random>
#include <vector>

#include "lockstep/strategy/kernels/matrix_product.h"

// Shared by the tests of the kernels.
namespace lockstep::kernels::testing_support {

inline std::vector<float> random_values(std::int64_t count, unsigned seed) {
  std::mt19937 engine(seed);
  std::uniform_real_distribution<float> uniform(-1, 1);
  std::vector<float> values(static_cast<std::size_t>(count));
  for (float& value : values) value = uniform(engine);
  return values;
}

/// A matrix whose elements are stored by rows or by columns.
inline MatrixView view_of(const std::vector<float>& values, std::int64_t rows, std::int64_t columns, bool by_columns) {
  return by_columns ? MatrixView{values.data(), 1, rows} : MatrixView{values.data(), columns, 1};
}

/// Element (i, j) of the product by its definition, in double.
inline double product_at(MatrixView a, MatrixView b, std::int64_t inner, std::int64_t i, std::int64_t j) {
  double sum = 0;
  for (std::int64_t k = 0; k < inner; ++k)
    sum += static_cast<double>(a.data[i * a.row_stride + k * a.column_stride]) *
           b.data[k * b.row_stride + j * b.column_stride];
  return sum;
}

/// The tolerance for a sum of that many products of floats between -1 and 1.
inline double tolerance_of(std::int64_t inner) { return 1e-6 * (4 + 4 * std::sqrt(static_cast<double>(inner))); }

}  // namespace lockstep::kernels::testing_support
