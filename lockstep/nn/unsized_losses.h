#pragma once

#include <ATen/core/Tensor.h>

// Losses that average_loss or compute_average_loss has divided by the rows of one call. In a window of `set_accumulate` they would be wrong, and
// only the optimizer knows of the window.
namespace lockstep::detail {

/// Notes what they return without a size, on this thread and until its next run. `is_first`: of the run.
void note_unsized_loss(const at::Tensor& result, bool is_first);

/// Whether `loss` is one of them, or was computed from one, such as a sum with other losses.
bool holds_unsized_loss(const at::Tensor& loss);

}  // namespace lockstep::detail
