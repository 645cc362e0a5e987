#pragma once

#include <cstdint>

namespace lockstep::kernels {

/// A matrix somewhere in memory: element (i, j) lies at data[i * row_stride + j * column_stride].
struct MatrixView {
  const float* data = nullptr;
  std::int64_t row_stride = 0;
  std::int64_t column_stride = 0;
};

/// c = a b, or c += a b: a is rows x inner, b is inner x columns; the rows of c are contiguous and `c_stride` apart.
///
/// The usual blocking, in which a panel of each operand is packed so that it streams through the caches, around tiles
/// of 8 x 12 sums that stay in registers. Uses one thread. The bits depend on the sizes alone.
void matrix_product(std::int64_t rows, std::int64_t inner, std::int64_t columns, MatrixView a, MatrixView b, float* c,
                    std::int64_t c_stride, bool accumulate);

}  // namespace lockstep::kernels
