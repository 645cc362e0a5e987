#pragma once

#include <c10/core/DeviceType.h>
#include <c10/core/ScalarType.h>

#include <array>
#include <cstddef>
#include <optional>

#include "lockstep/base/export.h"

namespace lockstep {

/// Until the end of the block, on this thread and in a `run` called there, products and convolutions are computed in
/// `dtype` and precision-sensitive operations in float32; weights keep their type.
///
///     strategy.run([&](const torch::Tensor& x) {
///       const ls::Autocast autocast(torch::kBFloat16);
///       optimizer.minimize(ls::average_loss(loss_per_row(model->forward(x))));
///     }, batch);
///
/// Around `run` it applies to all replicas. Unless a device is named, it covers CPUs and GPUs.
class LOCKSTEP_EXPORT Autocast {
 public:
  explicit Autocast(at::ScalarType dtype = at::ScalarType::BFloat16, std::optional<at::DeviceType> device = {});
  ~Autocast();
  Autocast(const Autocast&) = delete;
  Autocast& operator=(const Autocast&) = delete;

 private:
  struct Outer {
    at::DeviceType device;
    at::ScalarType dtype;
    bool is_enabled;
  };
  std::array<Outer, 2> outer_{};
  std::size_t devices_ = 0;  ///< how many entries are in use
};

namespace detail {

/// Autocast caches cast copies of the weights, which are stale once the weights change.
void forget_cast_weights();

}  // namespace detail

}  // namespace lockstep
