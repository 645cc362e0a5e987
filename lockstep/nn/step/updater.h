#pragma once

#include <memory>
#include <vector>

#include "lockstep/nn/step/gradient_state.h"
#include "lockstep/nn/step/step_plan.h"

namespace lockstep::detail {

struct OptimizerCore;
struct ReplicaPart;

/// How sums become weights, where the weights are. One object serves all local replicas of an optimizer; each calls it on
/// its own thread, for the segments that it owns, in the order of these functions.
class Updater {
 public:
  explicit Updater(OptimizerCore& core) : core_(core) {}
  virtual ~Updater() = default;

  /// With the options as they are now. `kinds`: of the gradients, the same on every replica.
  virtual UpdateTraits traits(const std::vector<GradientKind>& kinds) const = 0;

  // What an updater does itself if its traits say so, without asking the host.
  /// Looks for sums that are not finite; in a meeting.
  virtual void check(ReplicaPart&) {}
  /// Divides by the loss scale that the replica has left to the device.
  virtual void unscale(ReplicaPart&) {}
  /// Clipping by norm, in two halves, between which all replicas meet: each writes the sums of squares of what it owns; then
  /// each computes the factor and applies it.
  virtual void write_squares(ReplicaPart&) {}
  virtual void clip(ReplicaPart&, double /*max_norm*/) {}

  /// Applies the sums, or what the reduction has left to it, and writes the weights to other copies. In a meeting, and under
  /// Poison::update_or_poison: it must not stop half-way on one replica.
  virtual void update(ReplicaPart& mine) = 0;

 protected:
  /// The inner optimizer updates what has a sum of its own, and nothing that is left to a fused update. For nothing where all
  /// of it is.
  void step_inner(ReplicaPart& mine) const;

  OptimizerCore& core_;
};

/// Of weights on CPUs, or on CPUs and GPUs.
std::unique_ptr<Updater> make_host_updater(OptimizerCore& core);
/// Of weights on GPUs. Built with LOCKSTEP_CUDA it is nn/cuda/.
std::unique_ptr<Updater> make_device_updater(OptimizerCore& core);

}  // namespace lockstep::detail
