#pragma once

#include <ATen/core/Tensor.h>

#include <vector>

#include "lockstep/nn/step/updater.h"

namespace lockstep::detail {

/// Updates weights that are all on GPUs: enqueues work there and does not wait for it.
class DeviceUpdater final : public Updater {
 public:
  explicit DeviceUpdater(OptimizerCore& core);

  UpdateTraits traits(const std::vector<GradientKind>& kinds) const override;
  /// After a meeting of all replicas the update skips the step if any of them found a sum that is not finite.
  void check(ReplicaPart& mine) override;
  void unscale(ReplicaPart& mine) override;
  void write_squares(ReplicaPart& mine) override;
  void clip(ReplicaPart& mine, double max_norm) override;
  void update(ReplicaPart& mine) override;

 private:
  /// Whether clipping works without the host: all gradients are float32 and dense.
  bool are_plain(const std::vector<GradientKind>& kinds) const;
  /// Passes sums that were checked or clipped to the fused update, as `parts` with one entry.
  static void leave_sums(ReplicaPart& mine);
  /// Sums `parts` of every owned segment that has them and updates its weights as the inner optimizer would, leaving
  /// the same state in it, except for the number of steps, which the device counts.
  void launch(ReplicaPart& mine);
  /// Copies owned segments that had a gradient, in one launch if the other GPUs' copies are in reach.
  void write_to_other_gpus(const ReplicaPart& mine) const;
  void update_scale(const ReplicaPart& mine) const;

  std::size_t copy_of(const ReplicaPart& mine) const;
  const at::Tensor& block_sums_for(const ReplicaPart& mine) const { return block_sums_[copy_of(mine)]; }
  const at::Tensor& bad_sums_for(const ReplicaPart& mine) const { return bad_sums_[copy_of(mine)]; }

  // One per copy of the weights: a replica writes its part to all of them.
  std::vector<at::Tensor> block_sums_;  ///< OptimizerCore::blocks on the GPU, so that clipping does not wait
  std::vector<at::Tensor> bad_sums_;    ///< per replica: its first sum that is not finite
};

}  // namespace lockstep::detail
