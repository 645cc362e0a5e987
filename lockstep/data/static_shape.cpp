#include "lockstep/data/static_shape.h"

#include <algorithm>

namespace lockstep::data {
namespace {

/// The first known number of rows, if all known ones are the same.
std::int64_t common_rows(const std::vector<StaticShape>& shapes) {
  std::int64_t rows = kUnknownDim;
  for (const StaticShape& shape : shapes) {
    if (shape.empty() || shape.front() == kUnknownDim) continue;
    if (rows != kUnknownDim && rows != shape.front()) return kUnknownDim;
    rows = shape.front();
  }
  return rows;
}

}  // namespace

std::vector<StaticShape> with_rows(std::vector<StaticShape> shapes, std::int64_t rows) {
  for (StaticShape& shape : shapes) {
    if (!shape.empty()) shape.front() = rows;
  }
  return shapes;
}

StaticShape dummy_shape(const StaticShape& shape) {
  StaticShape dummy = shape;
  std::ranges::replace(dummy, kUnknownDim, 0);
  if (!dummy.empty()) dummy.front() = 0;
  return dummy;
}

std::vector<StaticShape> rebatched_shapes(const std::vector<StaticShape>& shapes,
                                          const std::vector<std::int64_t>& sizes, bool drop_remainder) {
  const std::int64_t size = sizes.front();
  const bool equal = std::ranges::all_of(sizes, [&](std::int64_t other) { return other == size; });
  const std::int64_t rows = common_rows(shapes);
  const bool no_remainder = drop_remainder || (rows != kUnknownDim && size > 0 && rows % size == 0);
  return with_rows(shapes, equal && no_remainder ? size : kUnknownDim);
}

std::vector<StaticShape> ceil_split_shapes(const std::vector<StaticShape>& shapes, int pieces) {
  std::vector<StaticShape> split = shapes;
  for (StaticShape& shape : split) {
    if (shape.empty() || shape.front() == kUnknownDim) continue;
    shape.front() = shape.front() % pieces == 0 ? shape.front() / pieces : kUnknownDim;
  }
  return split;
}

}  // namespace lockstep::data
