#pragma once

#include <ATen/core/Tensor.h>

#include <functional>

#include "lockstep/base/export.h"

namespace lockstep::train {

/// One loss for each row of the output: [rows], or [rows, ...] of which each row counts as its mean.
using Loss = std::function<at::Tensor(const at::Tensor& output, const at::Tensor& target)>;

/// Losses with one value for each row, for `Model` and for loops of your own.
namespace losses {

struct CrossEntropyOptions {
  double label_smoothing = 0.0;
};
/// Logits of classes in dimension 1, and class numbers or probabilities as targets.
LOCKSTEP_EXPORT Loss cross_entropy(const CrossEntropyOptions& options = {});
/// Logits and targets of one shape, between 0 and 1.
LOCKSTEP_EXPORT Loss binary_cross_entropy();
LOCKSTEP_EXPORT Loss mse();
LOCKSTEP_EXPORT Loss mae();

}  // namespace losses

namespace detail {

/// What `loss` returns as one value for each row. Throws InvalidArgument for a loss that is a mean or a sum already.
at::Tensor row_losses(const Loss& loss, const at::Tensor& output, const at::Tensor& target);

}  // namespace detail
}  // namespace lockstep::train
