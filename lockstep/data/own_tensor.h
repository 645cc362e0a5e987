#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

#include "lockstep/base/export.h"

// Parts of a batch as separate tensors. `narrow` and `select` return views: they share one version counter and one
// base, so writing into one part would disturb differentiation through another.
namespace lockstep::data {

/// The same values over the same memory with a version counter of its own, detached from any graph.
LOCKSTEP_EXPORT at::Tensor own_tensor(const at::Tensor& tensor);

/// Rows begin to begin + count - 1 of a batch. They share its memory if they are contiguous there and no two rows
/// overlap; their storage ends with them. Otherwise they are copied.
LOCKSTEP_EXPORT at::Tensor own_rows(const at::Tensor& batch, std::int64_t begin, std::int64_t count);

/// Row i of a batch likewise, with one dimension less.
LOCKSTEP_EXPORT at::Tensor own_row(const at::Tensor& batch, std::int64_t i);

}  // namespace lockstep::data
