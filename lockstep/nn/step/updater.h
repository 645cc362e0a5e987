#pragma once

#include <memory>
#include <vector>

#include "lockstep/nn/step/gradient_state.h"
#include "lockstep/nn/step/step_plan.h"

namespace lockstep::detail {

struct OptimizerCore;
struct ReplicaPart;

/// Applies sums to weights on their devices. One object serves all local replicas of an optimizer; each calls it on its
/// own thread, for the segments that it owns, in the order of these functions.
class Updater {
 public:
  explicit Updater(OptimizerCore& core) : core_(core) {}
  virtual ~Updater() = default;

  /// With the current options. `kinds`: kinds of the gradients, the same on every replica.
  virtual UpdateTraits traits(const std::vector<GradientKind>& kinds) const = 0;

  // Work that an updater does without the host if its traits allow it.
  /// Checks whether sums are finite; in a meeting.
  virtual void check(ReplicaPart&) {}
  /// Divides by the loss scale that the replica left to the device.
  virtual void unscale(ReplicaPart&) {}
  /// Clipping by norm, in two halves, between which all replicas meet: each writes the sums of squares of its segments;
  /// then each computes the factor and applies it.
  virtual void write_squares(ReplicaPart&) {}
  virtual void clip(ReplicaPart&, double /*max_norm*/) {}

  /// Applies the sums, or the reduction's inputs left to it, and copies the weights to other devices. In a meeting, and
  /// under Poison::update_or_poison: it must not stop half-way on one replica.
  virtual void update(ReplicaPart& mine) = 0;

 protected:
  /// Lets the inner optimizer update segments with a sum, but none left to a fused update. Does nothing if all are
  /// fused.
  void step_inner(ReplicaPart& mine) const;

  OptimizerCore& core_;
};

/// For weights on CPUs, or on CPUs and GPUs.
std::unique_ptr<Updater> make_host_updater(OptimizerCore& core);
/// For weights on GPUs. Implemented in nn/cuda/ with LOCKSTEP_CUDA.
std::unique_ptr<Updater> make_device_updater(OptimizerCore& core);

}  // namespace lockstep::detail
