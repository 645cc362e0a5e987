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

/// A segment of a parameter whose gradients are to be added up and applied.
struct SegmentUpdate {
  torch::optim::Optimizer& inner;
  std::size_t group;                           ///< of `inner`'s parameter groups
  const at::Tensor& weights;                   ///< what `inner` knows its state by
  const std::vector<const float*>& gradients;  ///< of all replicas, in order
  std::int64_t divisor;
};

/// Sums and updates in one pass. The result has the bits of summing first and calling `inner.step()` then, and leaves
/// the same state in `inner`.
using FusedUpdate = void (*)(const SegmentUpdate& update);

LOCKSTEP_EXPORT FusedUpdate fused_sgd_update();  ///< null where the CPU cannot do it

/// The options of SGD, as its fused updates take them.
SgdNumbers sgd_numbers(const torch::optim::OptimizerOptions& options);
/// The momentum buffer in the state that SGD keeps for `weights`; undefined before the first step with momentum.
at::Tensor& sgd_momentum_buffer(torch::optim::Optimizer& sgd, const at::Tensor& weights);

}  // namespace lockstep::detail
