#pragma once

#include <ATen/core/Tensor.h>

#include <memory>

#include "lockstep/nn/grad_scaler.h"

namespace lockstep::detail {

struct OptimizerCore;
struct ReplicaPart;

/// A replica's scale of a GradScaler. On a GPU it changes without the host; reading it waits.
struct alignas(128) LossScale : std::enable_shared_from_this<LossScale> {
  explicit LossScale(const GradScalerOptions& of_scaler) : options(of_scaler), state_{of_scaler.initial_scale, 0} {}

  static std::shared_ptr<LossScale> of_replica(const GradScaler& scaler);
  const GradScaler::State& read();
  void write(const GradScaler::State& state);

  const GradScalerOptions options;
  at::Tensor on_device;   ///< scale, good steps and 1 / scale, in double; undefined if it was never used
  bool is_sent = false;   ///< the device has the last value given to `write`
  bool is_ahead = false;  ///< and may have changed it
  GradScaler::State state_;
};

/// The scales used by backward in a replica's part of a run (run_local): other optimizers may find gradients scaled by
/// them.
struct ScalesOfRun {
  void note(double used) {
    has_several |= scale != 0 && scale != used;
    scale = used;
  }

  double scale = 0;  ///< the last one; 0: none
  bool has_several = false;
};

// Does not wait for the device. Implemented in nn/cuda/ with LOCKSTEP_CUDA; otherwise by device_step_absent.cpp.
/// Whether minimize can leave the scale of this loss to the device.
bool can_scale_on_device(const OptimizerCore& core, const at::Tensor& loss);
void send_scale(LossScale& scale, at::Device device);
/// Waits for the device, if it is ahead.
void fetch_scale(LossScale& scale);
at::Tensor scale_on_device(LossScale& scale, const at::Tensor& loss);

}  // namespace lockstep::detail
