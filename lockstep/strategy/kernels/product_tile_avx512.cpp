#include "lockstep/strategy/kernels/product_tile_avx512.h"

#if defined(__AVX512F__)

#include <immintrin.h>

#include <cstring>

// This file alone is compiled for processors with AVX-512, and they may not be there: nothing in it may be called, nor
// an inline function of it be shared with other files, before somebody looked.

namespace lockstep::kernels {
namespace {

constexpr std::int64_t kLanes = 16;
constexpr std::int64_t kRows = 8;  // 8 x 3 sums, 3 + 1 operands: 28 of 32 registers
constexpr std::int64_t kVectors = 3;
constexpr std::int64_t kColumns = kVectors * kLanes;

/// Far enough ahead of the products for lines to come from the second-level cache.
constexpr std::int64_t kAhead = 8;

void multiply(const float* left, const float* right, std::int64_t inner, float* c, std::int64_t c_stride, bool add) {
  __m512 sums[kRows][kVectors];
#pragma GCC unroll 8
  for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 3
    for (int v = 0; v < kVectors; ++v)
      sums[r][v] = add ? _mm512_loadu_ps(c + r * c_stride + v * kLanes) : _mm512_setzero_ps();
  }
  for (std::int64_t k = 0; k < inner; ++k, left += kRows, right += kColumns) {
    __m512 in[kVectors];
#pragma GCC unroll 3
    for (int v = 0; v < kVectors; ++v) {
      in[v] = _mm512_loadu_ps(right + v * kLanes);
      _mm_prefetch(reinterpret_cast<const char*>(right + kAhead * kColumns + v * kLanes), _MM_HINT_T0);
    }
    _mm_prefetch(reinterpret_cast<const char*>(left + 2 * kAhead * kRows), _MM_HINT_T0);
#pragma GCC unroll 8
    for (int r = 0; r < kRows; ++r) {
      const __m512 scale = _mm512_set1_ps(left[r]);
#pragma GCC unroll 3
      for (int v = 0; v < kVectors; ++v) sums[r][v] = _mm512_fmadd_ps(in[v], scale, sums[r][v]);
    }
  }
#pragma GCC unroll 8
  for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 3
    for (int v = 0; v < kVectors; ++v) _mm512_storeu_ps(c + r * c_stride + v * kLanes, sums[r][v]);
  }
}

/// Eight lines of eight elements become eight rows of eight lines.
inline void transpose(const float* from, std::int64_t line_stride, float* to, std::int64_t to_stride) {
  __m256 a[8], b[8];
  for (int i = 0; i < 8; ++i) a[i] = _mm256_loadu_ps(from + i * line_stride);
  for (int i = 0; i < 8; i += 2) {
    b[i] = _mm256_unpacklo_ps(a[i], a[i + 1]);
    b[i + 1] = _mm256_unpackhi_ps(a[i], a[i + 1]);
  }
  for (int i = 0; i < 8; i += 4) {
    a[i] = _mm256_shuffle_ps(b[i], b[i + 2], 0x44);
    a[i + 1] = _mm256_shuffle_ps(b[i], b[i + 2], 0xEE);
    a[i + 2] = _mm256_shuffle_ps(b[i + 1], b[i + 3], 0x44);
    a[i + 3] = _mm256_shuffle_ps(b[i + 1], b[i + 3], 0xEE);
  }
  for (int i = 0; i < 4; ++i) {
    _mm256_storeu_ps(to + i * to_stride, _mm256_permute2f128_ps(a[i], a[i + 4], 0x20));
    _mm256_storeu_ps(to + (i + 4) * to_stride, _mm256_permute2f128_ps(a[i], a[i + 4], 0x31));
  }
}

template <std::int64_t kWidth>
void pack(const float* from, std::int64_t line_stride, std::int64_t inner_stride, std::int64_t count,
          std::int64_t inner, float* to) {
  for (std::int64_t first = 0; first < count; first += kWidth, to += inner * kWidth) {
    const float* group = from + first * line_stride;
    const std::int64_t lines = count - first < kWidth ? count - first : kWidth;
    if (lines == kWidth && line_stride == 1) {
      for (std::int64_t k = 0; k < inner; ++k)
        std::memcpy(to + k * kWidth, group + k * inner_stride, kWidth * sizeof(float));
      continue;
    }
    std::int64_t k = 0;
    if (lines == kWidth && inner_stride == 1) {
      // Whole cache lines of the operand: its lines often lie a power of two apart and push each other out.
      for (; k + 16 <= inner; k += 16) {
        for (std::int64_t line = 0; line < kWidth; line += 8) {
          for (std::int64_t half = 0; half < 16; half += 8)
            transpose(group + line * line_stride + k + half, line_stride, to + (k + half) * kWidth + line, kWidth);
        }
      }
    }
    for (; k < inner; ++k) {
      for (std::int64_t line = 0; line < kWidth; ++line)
        to[k * kWidth + line] = line < lines ? group[line * line_stride + k * inner_stride] : 0.0F;
    }
  }
}

}  // namespace

const ProductTile kAvx512Tile = {.rows = kRows,
                                 .columns = kColumns,
                                 .pack_rows = &pack<kRows>,
                                 .pack_columns = &pack<kColumns>,
                                 .multiply = &multiply};

}  // namespace lockstep::kernels

#endif
