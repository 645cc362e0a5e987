#pragma once

#include <cstdint>

#include "lockstep/base/function_ref.h"
#include "lockstep/strategy/kernels/matrix_product.h"
#include "lockstep/strategy/kernels/product_tile.h"

namespace lockstep::kernels {

/// Threads that work together. `run` calls its argument once for every member 0 .. size - 1, on any threads, also one
/// after the other, and returns when all have returned.
struct Team {
  int size = 1;
  FunctionRef<void(FunctionRef<void(int member)>)> run;
};

struct ProductSizes {
  std::int64_t rows = 0, inner = 0, columns = 0;
};

/// How many floats of scratch memory shared_product needs; at most 34 MB of them.
std::int64_t shared_product_scratch(const ProductTile& tile, const ProductSizes& sizes);

/// c = a b, plus `row` in every row if there is one; the rows of c are contiguous and `c_stride` apart.
///
/// Both operands are packed once, by all together. Then everybody computes blocks of neighbouring columns, whose packed
/// operand stays in its second-level cache, and those who are done help the others: cores of one machine differ in
/// speed by half when others use it too, and cut into equal parts a product takes as long as on the slowest. The bits
/// depend on the sizes and the tile alone, not on the team nor on who computed what.
void shared_product(const ProductTile& tile, const ProductSizes& sizes, MatrixView a, MatrixView b, const float* row,
                    float* c, std::int64_t c_stride, float* scratch, const Team& team);

}  // namespace lockstep::kernels
