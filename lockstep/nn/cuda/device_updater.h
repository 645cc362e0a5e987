#pragma once

#include <ATen/core/Tensor.h>

#include <vector>

#include "lockstep/nn/step/updater.h"

namespace lockstep::detail {

/// Of weights that are all on GPUs: enqueues work there and does not wait for it.
class DeviceUpdater final : public Updater {
 public:
  explicit DeviceUpdater(OptimizerCore& core);

  UpdateTraits traits(const std::vector<GradientKind>& kinds) const override;
  /// After a meeting of all replicas the update skips the step if one of them has found a sum that is not finite.
  void check(ReplicaPart& mine) override;
  void unscale(ReplicaPart& mine) override;
  void write_squares(ReplicaPart& mine) override;
  void clip(ReplicaPart& mine, double max_norm) override;
  void update(ReplicaPart& mine) override;

 private:
  /// Whether clipping need not ask the host: all gradients are float32 and dense.
  bool are_plain(const std::vector<GradientKind>& kinds) const;
  /// Gives sums that have been checked or clipped to the fused update too, as `parts` of one.
  static void leave_sums(ReplicaPart& mine);
  /// Adds up `parts` of every owned segment that has them and updates its weights, as the inner optimizer would, and leaves
  /// the same state in it, but for the number of steps, which the device counts.
  void launch(ReplicaPart& mine);
  /// Of owned segments that had a gradient, in one launch where the other GPUs' copies are in reach.
  void write_to_other_gpus(const ReplicaPart& mine) const;
  void update_scale(const ReplicaPart& mine) const;

  std::size_t copy_of(const ReplicaPart& mine) const;
  const at::Tensor& block_sums_for(const ReplicaPart& mine) const { return block_sums_[copy_of(mine)]; }
  const at::Tensor& bad_sums_for(const ReplicaPart& mine) const { return bad_sums_[copy_of(mine)]; }

  // One of each for each copy of the weights: a replica writes what is its own to all of them.
  std::vector<at::Tensor> block_sums_;  ///< OptimizerCore::blocks, so that clipping waits for nothing
  std::vector<at::Tensor> bad_sums_;    ///< per replica: which of its sums is not finite
};

}  // namespace lockstep::detail
