#pragma once

#include <c10/core/DeviceType.h>
#include <c10/core/ScalarType.h>

#include "lockstep/base/export.h"

namespace lockstep {

/// Until the end of the block, on this thread and in what `run` does for it, products and convolutions are computed in
/// `dtype` and what needs precision in float32; weights stay as they are.
///
///     strategy.run([&](const torch::Tensor& x) {
///       const ls::Autocast autocast(torch::kBFloat16);
///       optimizer.minimize(ls::average_loss(loss_per_row(model->forward(x))));
///     }, batch);
///
/// Around `run` it does the same for all replicas.
class LOCKSTEP_EXPORT Autocast {
 public:
  explicit Autocast(at::ScalarType dtype = at::ScalarType::BFloat16, at::DeviceType device = at::DeviceType::CPU);
  ~Autocast();
  Autocast(const Autocast&) = delete;
  Autocast& operator=(const Autocast&) = delete;

 private:
  at::DeviceType device_;
  at::ScalarType outer_dtype_;
  bool outer_enabled_;
};

namespace detail {

/// Autocast keeps copies of the weights that it has cast; they are of no use once the weights change.
void forget_cast_weights();

}  // namespace detail

}  // namespace lockstep
