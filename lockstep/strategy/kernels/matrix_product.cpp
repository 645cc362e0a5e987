#include "lockstep/strategy/kernels/matrix_product.h"

#include <algorithm>
#include <vector>

#include "lockstep/strategy/kernels/product_tile.h"
#include "lockstep/strategy/kernels/vector_tile.h"

namespace lockstep::kernels {
namespace {

// A block of the right operand stays in the second-level cache, a tile's share of it in the first.
constexpr std::int64_t kInner = 384;
constexpr std::int64_t kRows = 128;
constexpr std::int64_t kColumns = 576;

#if defined(__aarch64__)
/// Four lines of `inner` elements each, transposed four by four; returns how far it came.
template <std::int64_t kWidth>
std::int64_t transpose(const float* group, std::int64_t line_stride, std::int64_t inner, float* to) {
  std::int64_t k = 0;
  for (; k + kLanes <= inner; k += kLanes) {
    for (std::int64_t v = 0; v < kWidth; v += kLanes) {
      const float* corner = group + v * line_stride + k;
      const Vector a = load(corner), b = load(corner + line_stride), c = load(corner + 2 * line_stride),
                   d = load(corner + 3 * line_stride);
      const Vector ac_low = vzip1q_f32(a, c), ac_high = vzip2q_f32(a, c), bd_low = vzip1q_f32(b, d),
                   bd_high = vzip2q_f32(b, d);
      float* into = to + k * kWidth + v;
      store(into, vzip1q_f32(ac_low, bd_low));
      store(into + kWidth, vzip2q_f32(ac_low, bd_low));
      store(into + 2 * kWidth, vzip1q_f32(ac_high, bd_high));
      store(into + 3 * kWidth, vzip2q_f32(ac_high, bd_high));
    }
  }
  return k;
}
#else
template <std::int64_t kWidth>
std::int64_t transpose(const float*, std::int64_t, std::int64_t, float*) {
  return 0;
}
#endif

/// See ProductTile.
template <std::int64_t kWidth>
void pack(const float* from, std::int64_t line_stride, std::int64_t inner_stride, std::int64_t count,
          std::int64_t inner, float* to) {
  for (std::int64_t first = 0; first < count; first += kWidth, to += inner * kWidth) {
    const float* group = from + first * line_stride;
    const std::int64_t lines = std::min(kWidth, count - first);
    if (lines == kWidth && line_stride == 1) {
      for (std::int64_t k = 0; k < inner; ++k) {
        for (std::int64_t v = 0; v < kWidth; v += kLanes)
          store(to + k * kWidth + v, load(group + k * inner_stride + v));
      }
      continue;
    }
    std::int64_t k = lines == kWidth && inner_stride == 1 ? transpose<kWidth>(group, line_stride, inner, to) : 0;
    for (; k < inner; ++k) {
      for (std::int64_t line = 0; line < kWidth; ++line)
        to[k * kWidth + line] = line < lines ? group[line * line_stride + k * inner_stride] : 0.0F;
    }
  }
}

/// One tile of c from a packed group of rows and a packed group of columns.
void multiply_tile(const float* left, const float* right, std::int64_t inner, float* c, std::int64_t c_stride,
                   bool add) {
  const TileSteps steps{.rows = 1,
                        .columns = inner,
                        .left_row = 0,
                        .left_column = kTileRows,
                        .right_row = 0,
                        .right_column = kTileColumns};
  accumulate_tile<kTileVectors>(steps, left, right, c, c_stride, add);
}

/// A tile at the border, where c has less than 8 rows or 12 columns.
void multiply_border(const float* left, const float* right, std::int64_t inner, std::int64_t rows, std::int64_t columns,
                     float* c, std::int64_t c_stride, bool add) {
  float whole[kTileRows * kTileColumns] = {};
  for (std::int64_t r = 0; add && r < rows; ++r) std::copy_n(c + r * c_stride, columns, whole + r * kTileColumns);
  multiply_tile(left, right, inner, whole, kTileColumns, true);
  for (std::int64_t r = 0; r < rows; ++r) std::copy_n(whole + r * kTileColumns, columns, c + r * c_stride);
}

constexpr std::int64_t padded(std::int64_t count, std::int64_t to) { return (count + to - 1) / to * to; }

float* scratch(std::vector<float>& memory, std::int64_t floats) {
  if (memory.size() < static_cast<std::size_t>(floats)) memory.resize(static_cast<std::size_t>(floats));
  return memory.data();
}

}  // namespace

void matrix_product(std::int64_t rows, std::int64_t inner, std::int64_t columns, MatrixView a, MatrixView b, float* c,
                    std::int64_t c_stride, bool accumulate) {
  if (inner == 0 && !accumulate) {
    for (std::int64_t r = 0; r < rows; ++r) std::fill_n(c + r * c_stride, columns, 0.0F);
  }
  thread_local std::vector<float> left_memory, right_memory;
  float* const left = scratch(left_memory, padded(kRows, kTileRows) * kInner);
  float* const right = scratch(right_memory, padded(kColumns, kTileColumns) * kInner);
  for (std::int64_t column = 0; column < columns; column += kColumns) {
    const std::int64_t block_columns = std::min(kColumns, columns - column);
    for (std::int64_t k = 0; k < inner; k += kInner) {
      const std::int64_t depth = std::min(kInner, inner - k);
      const bool add = accumulate || k > 0;
      pack<kTileColumns>(b.data + k * b.row_stride + column * b.column_stride, b.column_stride, b.row_stride,
                         block_columns, depth, right);
      for (std::int64_t row = 0; row < rows; row += kRows) {
        const std::int64_t block_rows = std::min(kRows, rows - row);
        pack<kTileRows>(a.data + row * a.row_stride + k * a.column_stride, a.row_stride, a.column_stride, block_rows,
                        depth, left);
        for (std::int64_t j = 0; j < block_columns; j += kTileColumns) {
          const std::int64_t width = std::min(kTileColumns, block_columns - j);
          for (std::int64_t i = 0; i < block_rows; i += kTileRows) {
            const std::int64_t height = std::min(kTileRows, block_rows - i);
            float* tile = c + (row + i) * c_stride + column + j;
            if (height == kTileRows && width == kTileColumns) {
              multiply_tile(left + i * depth, right + j * depth, depth, tile, c_stride, add);
            } else {
              multiply_border(left + i * depth, right + j * depth, depth, height, width, tile, c_stride, add);
            }
          }
        }
      }
    }
  }
}

const ProductTile& portable_tile() {
  static constexpr ProductTile kTile = {.rows = kTileRows,
                                        .columns = kTileColumns,
                                        .pack_rows = &pack<kTileRows>,
                                        .pack_columns = &pack<kTileColumns>,
                                        .multiply = &multiply_tile};
  return kTile;
}

}  // namespace lockstep::kernels
