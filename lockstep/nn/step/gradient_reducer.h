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

/// How gradients are brought together. One object serves all local replicas of an optimizer; every function is called
/// by each of them on its own thread, in this order:
///
///   start     before the backward pass that ends a step, when its gradients will be reduced right after it
///   bring_together   this replica has gone backward and shown its gradients (`ReplicaPart::shown`)
///   reduce    all local replicas have, and know the kinds of all gradients (`ReplicaPart::kinds`); for the segments that the
///             replica owns. None goes on before all have finished
///
/// All sums have the one order of comm/ordered_sum.h, so that the choice of a reducer never changes a result. The phases
/// around it do not know which one runs:
///
///   * SharedMemoryReducer: replicas of one process.
///   * WorkerReducer: between workers. `start` arms hooks that it has put on the parameters' gradient accumulators. A
///     bucket goes out as soon as its gradients are there, while backward still runs; `bring_together` waits for the sums.
///     Without `start` (several calls of `backward`) all buckets go out there.
///   * On a device, `reduce` only enqueues work, or leaves it to a fused update on that device by filling in `parts`.
///     What it cannot know without waiting for the device, such as a sum that is not finite, stays there as a flag that
///     the fused update is predicated on, and is raised by the next call.
class GradientReducer {
 public:
  using Replicas = std::vector<std::unique_ptr<ReplicaPart>>;

  /// `group_of`: per parameter; what is in no group is left alone. `replicas`: of this process.
  GradientReducer(const ModuleCore& module, const std::vector<int>& group_of, const Replicas& replicas)
      : module_(module), group_of_(group_of), replicas_(replicas) {}
  virtual ~GradientReducer() = default;

  /// Whether replicas of other workers take part.
  virtual bool has_workers() const { return false; }

  /// A replica may throw between `start` and `reduce`, or call `start` twice: what has begun then counts for nothing.
  virtual void start(ReplicaPart&, ReduceOp) {}
  /// Between workers: meets the other replicas, exchanges gradients and fills in the `kinds` of all replicas. Throws, the same on
  /// every replica, what keeps gradients from being exchanged.
  virtual void bring_together(ReplicaPart&, ReduceOp, const StepCall&) {}
  /// Fills in `sum` of `mine.owned`, or `parts` where `mine.plan` leaves the segment to the update, and clears both where
  /// `kinds` says that there is no gradient. If the host checks the sums, fills in `mine.reduced.not_finite`.
  virtual void reduce(ReplicaPart& mine, ReduceOp op) = 0;
  /// By replica 0 alone: the update is made, and its weights are marked as changed.
  virtual void step_is_over() {}

 protected:
  at::Device device_of(std::size_t k) const;
  at::Device device_of(const ReplicaPart& mine) const;
  /// All rows, equal ones added up in their order.
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
