#pragma once

#include <cstdint>
#include <vector>

#include "lockstep/base/export.h"

namespace lockstep::data {

/// The shape of one component as far as it is known beforehand; -1 for a dimension that is not.
using StaticShape = std::vector<std::int64_t>;

inline constexpr std::int64_t kUnknownDim = -1;

/// The shape of the empty batch that a replica without data gets: the first dimension is 0, whatever is known of it,
/// and so are unknown ones; a scalar stays a scalar (a zero).
LOCKSTEP_EXPORT StaticShape dummy_shape(const StaticShape& shape);

/// The same shapes with this first dimension, where they have one.
LOCKSTEP_EXPORT std::vector<StaticShape> with_rows(std::vector<StaticShape> shapes, std::int64_t rows);

/// The shapes after cutting a stream by `sizes`: the first dimension is known if all sizes are equal and a known
/// dimension of the input is a multiple of them (or remainders are dropped).
LOCKSTEP_EXPORT std::vector<StaticShape> rebatched_shapes(const std::vector<StaticShape>& shapes,
                                                          const std::vector<std::int64_t>& sizes,
                                                          bool drop_remainder = false);

/// The shapes after the ceil split: the first dimension is known if it is divisible by the number of pieces.
LOCKSTEP_EXPORT std::vector<StaticShape> ceil_split_shapes(const std::vector<StaticShape>& shapes, int pieces);

}  // namespace lockstep::data
