#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <iosfwd>
#include <vector>

#include "lockstep/base/export.h"
#include "lockstep/values/structure.h"

namespace lockstep {

/// Some rows of a larger tensor, such as an embedding's gradient: row `indices[i]` is `values[i]`. Repeated rows count
/// as their sum; order and repetitions are kept. It is one leaf of a structure.
///
///     IndexedSlices{.values = rows, .indices = row_numbers, .dense_shape = {1000, 64}}
struct IndexedSlices {
  at::Tensor values;                 ///< [n, ...]
  at::Tensor indices;                ///< [n], integral
  std::vector<int64_t> dense_shape;  ///< the shape of the whole tensor; empty if unknown

  /// The whole tensor, zero where there is no row. Requires dense_shape.
  LOCKSTEP_EXPORT at::Tensor to_dense() const;
};

template <>
inline constexpr bool treat_as_leaf_v<IndexedSlices> = true;

/// Throws InvalidArgument if the parts do not match; `where` names the caller in the message.
LOCKSTEP_EXPORT void check_indexed_slices(const IndexedSlices& slices, const std::string& where);

LOCKSTEP_EXPORT std::ostream& operator<<(std::ostream& out, const IndexedSlices& slices);

}  // namespace lockstep
