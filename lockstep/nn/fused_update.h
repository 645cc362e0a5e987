#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

#include "lockstep/base/export.h"

namespace torch::optim {
class Optimizer;
}

namespace lockstep::detail {

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

}  // namespace lockstep::detail
