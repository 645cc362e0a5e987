#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

#include "lockstep/base/export.h"

// Parts of a batch as tensors of their own. What `narrow` and `select` give are views in the eyes of autograd: they
// share one version counter and one base, so that writing into one part disturbs differentiation through another.
namespace lockstep::data {

/// The same values over the same memory with a version counter of its own, detached from any graph.
LOCKSTEP_EXPORT at::Tensor own_tensor(const at::Tensor& tensor);

/// Rows begin to begin + count - 1 of a batch. They share its memory if they lie in it in one piece and no row shares
/// memory with another; their storage ends where they end. Otherwise they are copied.
LOCKSTEP_EXPORT at::Tensor own_rows(const at::Tensor& batch, std::int64_t begin, std::int64_t count);

/// Row i of a batch in the same way, with one dimension less.
LOCKSTEP_EXPORT at::Tensor own_row(const at::Tensor& batch, std::int64_t i);

}  // namespace lockstep::data
