#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "lockstep/comm/reduce_op.h"
#include "lockstep/nn/step/gradient_state.h"

namespace lockstep::detail {

class ModuleCore;
struct ReplicaPart;
struct StepCall;

/// How gradients are reduced. One object serves all local replicas of an optimizer; every function is called by each of
/// them on its own thread, in this order:
///
///   start      before the backward pass that ends a step, if its gradients are reduced right after it
///   exchange   after this replica ran backward and published its gradients (`ReplicaPart::shown`)
///   reduce     after all local replicas did, when the kinds of all gradients are known (`ReplicaPart::kinds`);
///              for the segments that the replica owns. No replica continues before all have finished
///
/// All sums have the one order of comm/ordered_sum.h, so the choice of a reducer never changes a result. The phases
/// around it do not depend on which one runs:
///
///   * SharedMemoryReducer: replicas of one process.
///   * WorkerReducer: between workers. `start` arms its hooks on the parameters' gradient accumulators. A bucket is
///     sent as soon as its gradients are there, while backward still runs; `exchange` waits for the sums. Without
///     `start` (several calls of `backward`) it sends all buckets.
///   * On a device, `reduce` only enqueues work, or leaves it to a fused update on that device by setting `parts`.
///     Results that would require waiting for the device, such as a non-finite sum, stay there as a flag on which the
///     fused update is predicated, and are raised by the next call.
class GradientReducer {
 public:
  using Replicas = std::vector<std::unique_ptr<ReplicaPart>>;

  /// `group_of`: per parameter; parameters without a group are left alone. `replicas`: of this process.
  GradientReducer(const ModuleCore& module, const std::vector<int>& group_of, const Replicas& replicas)
      : module_(module), group_of_(group_of), replicas_(replicas) {}
  virtual ~GradientReducer() = default;

  /// Whether replicas of other workers take part.
  virtual bool has_workers() const { return false; }

  /// A replica may throw between `start` and `reduce`, or call `start` twice: what was begun is then discarded.
  virtual void start(ReplicaPart&, ReduceOp) {}
  /// Between workers: meets the other replicas, exchanges gradients and fills in the `kinds` of all replicas. Throws,
  /// the same on every replica, if gradients cannot be exchanged.
  virtual void exchange(ReplicaPart&, ReduceOp, const StepCall&) {}
  /// Sets `sum` of `mine.owned`, or `parts` if `mine.plan` leaves the segment to the update, and clears both if `kinds`
  /// shows no gradient. If the host checks the sums, sets `mine.reduced.not_finite`.
  virtual void reduce(ReplicaPart& mine, ReduceOp op) = 0;
  /// Called only by replica 0 once the update is made and its weights are marked as changed.
  virtual void end_step() {}

 protected:
  at::Device device_of(std::size_t k) const;
  at::Device device_of(const ReplicaPart& mine) const;
  /// All rows, with equal ones summed in their order.
  static at::Tensor sum_of_rows(const std::vector<at::Tensor>& indices, const std::vector<at::Tensor>& values,
                                const at::Tensor& leaf, std::int64_t divisor);
  /// The first replica of this process with a gradient that is not finite, apart from `skipped`; -1: none.
  int not_finite_here(const OwnedSegment& segment, int skipped = -1) const;

  const ModuleCore& module_;
  const std::vector<int>& group_of_;
  const Replicas& replicas_;
};

bool is_finite(const at::Tensor& tensor);

}  // namespace lockstep::detail
