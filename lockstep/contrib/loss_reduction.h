#pragma once

#include <ATen/core/Tensor.h>

#include "lockstep/base/export.h"

namespace lockstep::contrib {

/// How a tower's losses were reduced to one number. TensorFlow 1.11 records it itself; here it is an argument.
enum class LossReduction { SUM, MEAN };

/// The loss to run backward from: for a mean, its share of the mean over all towers. Inside a tower.
LOCKSTEP_EXPORT at::Tensor scale_loss(const at::Tensor& loss, LossReduction reduction);

/// Equivalent to the optimizers of TensorFlow 1.11 in a tower: gradients are summed over towers, so a mean loss is
/// divided by the number of towers first. `optimizer` is made by `strategy.core().make_optimizer`.
///
///     contrib::minimize(optimizer, torch::mse_loss(model->forward(x), y), contrib::LossReduction::MEAN);
template <class Optimizer>
bool minimize(Optimizer& optimizer, const at::Tensor& loss, LossReduction reduction) {
  return optimizer.minimize(scale_loss(loss, reduction));
}

}  // namespace lockstep::contrib
