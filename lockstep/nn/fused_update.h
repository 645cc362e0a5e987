#pragma once

#include <torch/optim/optimizer.h>

#include <vector>

#include "lockstep/base/export.h"

namespace torch::optim {
class SGD;
}

namespace lockstep::detail {

/// A segment of a parameter whose gradients are to be added up and applied.
struct SegmentUpdate {
  torch::optim::Optimizer& inner;
  std::size_t group;                    ///< of `inner`'s parameter groups
  at::Tensor segment;                   ///< the weights: what `inner` knows its state by
  std::vector<const float*> gradients;  ///< of all replicas, in order
  std::int64_t divisor;
};

/// Sums and updates in one pass. The result has the bits of summing first and calling `inner.step()` then, and leaves
/// the same state in `inner`.
using FusedUpdate = void (*)(const SegmentUpdate& update);

LOCKSTEP_EXPORT FusedUpdate fused_sgd_update();  ///< null where the CPU cannot do it

/// The fused update of an optimizer class; null: it has none.
template <class Opt>
FusedUpdate fused_update_of() {
  if constexpr (std::is_same_v<Opt, torch::optim::SGD>) {
    return fused_sgd_update();
  } else {
    return nullptr;
  }
}

}  // namespace lockstep::detail
