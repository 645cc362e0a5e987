#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

#include "lockstep/base/export.h"

namespace torch::optim {
class Optimizer;
class OptimizerOptions;
}  // namespace torch::optim

namespace lockstep::detail {

struct SgdNumbers;  // nn/fused_sgd.h

/// A segment of a parameter whose gradients are to be summed and applied.
struct SegmentUpdate {
  torch::optim::Optimizer& inner;
  std::size_t group;                           ///< index of `inner`'s parameter group
  const at::Tensor& weights;                   ///< the key of its state in `inner`
  const std::vector<const float*>& gradients;  ///< one per replica, in order
  std::int64_t divisor;
};

/// Sums and updates in one pass. The result has the bits of summing first and then calling `inner.step()`, and leaves
/// the same state in `inner`.
using FusedUpdate = void (*)(const SegmentUpdate& update);

LOCKSTEP_EXPORT FusedUpdate fused_sgd_update();  ///< null if the CPU does not support it

/// SGD's options in the form of its fused updates.
SgdNumbers sgd_numbers(const torch::optim::OptimizerOptions& options);
/// The momentum buffer in SGD's state for `weights`; undefined before the first step with momentum.
at::Tensor& sgd_momentum_buffer(torch::optim::Optimizer& sgd, const at::Tensor& weights);

}  // namespace lockstep::detail
