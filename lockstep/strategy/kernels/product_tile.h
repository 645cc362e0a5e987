#pragma once

#include <cstdint>

namespace lockstep::kernels {

/// What one kind of processor multiplies at a time: `rows` x `columns` sums that stay in registers.
///
/// Packing copies lines (rows of the left operand, columns of the right one) of `inner` elements so that for each k the
/// lines of a group, `rows` or `columns` of them, are neighbours: to[group][k][line in group]. Missing lines of the
/// last group become zero.
struct ProductTile {
  using Pack = void(const float* from, std::int64_t line_stride, std::int64_t inner_stride, std::int64_t lines,
                    std::int64_t inner, float* to);

  std::int64_t rows, columns;
  Pack* pack_rows;
  Pack* pack_columns;
  /// c = left right, or c += left right, for one packed group of each.
  void (*multiply)(const float* left, const float* right, std::int64_t inner, float* c, std::int64_t c_stride,
                   bool add);
};

/// Runs everywhere; made for Arm.
const ProductTile& portable_tile();

/// Null where the processor or the operating system has no AVX-512.
const ProductTile* avx512_tile();

}  // namespace lockstep::kernels
