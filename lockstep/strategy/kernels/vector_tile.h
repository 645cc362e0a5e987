#pragma once

// The innermost loop of convolution_gradient.cpp and matrix_product.cpp: an 8 x 12 tile of sums kept in registers.

#include <cstdint>
#include <cstring>
#include <type_traits>
#include <utility>

#if defined(__aarch64__)
#include <arm_neon.h>
#endif

namespace lockstep::kernels {

inline constexpr std::int64_t kLanes = 4;     ///< floats in a vector register
inline constexpr std::int64_t kTileRows = 8;  ///< 8 x 3 sums and 5 operands fit into 32 registers
inline constexpr std::int64_t kTileVectors = 3;
inline constexpr std::int64_t kTileColumns = kTileVectors * kLanes;

#if defined(__aarch64__)
using Vector = float32x4_t;
inline Vector load(const float* from) { return vld1q_f32(from); }
inline void store(float* to, Vector value) { vst1q_f32(to, value); }
template <int kLane>
Vector add_scaled(Vector sum, Vector x, Vector scale) {
  return vfmaq_laneq_f32(sum, x, scale, kLane);
}
#else
using Vector = float __attribute__((vector_size(16)));
inline Vector load(const float* from) {
  Vector value;
  std::memcpy(&value, from, sizeof value);
  return value;
}
inline void store(float* to, Vector value) { std::memcpy(to, &value, sizeof value); }
template <int kLane>
Vector add_scaled(Vector sum, Vector x, Vector scale) {
  return sum + x * scale[kLane];
}
#endif

/// Which products a tile adds up: `rows` x `columns` of them, and how far apart their operands lie.
struct TileSteps {
  std::int64_t rows, columns;
  std::int64_t left_row, left_column;
  std::int64_t right_row, right_column;
};

/// f(0), f(1), ... with constants. Loops would do, but the compiler keeps an array in registers only if it sees
/// constant indices early enough.
template <int kCount, class F>
[[gnu::always_inline]] inline void for_constants(F&& f) {
  [&]<int... kIndices>(std::integer_sequence<int, kIndices...>) __attribute__((always_inline)) {
    (f(std::integral_constant<int, kIndices>{}), ...);
  }
  (std::make_integer_sequence<int, kCount>{});
}

/// sums[r][c] += left[r] * right[c], over all steps; r < 8, c < kVectors * 4. Without `add` the sums begin at zero.
template <int kVectors>
void accumulate_tile(const TileSteps& steps, const float* left, const float* right, float* sums,
                     std::int64_t sums_stride, bool add = true) {
  Vector sum[kTileRows * kVectors];
  for_constants<kTileRows * kVectors>([&](auto i) __attribute__((always_inline)) {
    sum[i] = add ? load(sums + i / kVectors * sums_stride + i % kVectors * kLanes) : Vector{};
  });
  for (std::int64_t y = 0; y < steps.rows; ++y) {
    const float* row_left = left + y * steps.left_row;
    const float* row_right = right + y * steps.right_row;
    for (std::int64_t x = 0; x < steps.columns; ++x) {
      const Vector scales[2] = {load(row_left), load(row_left + kLanes)};
      Vector in[kVectors];
      for_constants<kVectors>([&](auto v) __attribute__((always_inline)) { in[v] = load(row_right + v * kLanes); });
      for_constants<kTileRows * kVectors>([&](auto i) __attribute__((always_inline)) {
        constexpr int kRow = i / kVectors;
        sum[i] = add_scaled<kRow % kLanes>(sum[i], in[i % kVectors], scales[kRow / kLanes]);
      });
      row_left += steps.left_column;
      row_right += steps.right_column;
    }
  }
  for_constants<kTileRows * kVectors>([&](auto i) __attribute__((always_inline)) {
    store(sums + i / kVectors * sums_stride + i % kVectors * kLanes, sum[i]);
  });
}

}  // namespace lockstep::kernels
