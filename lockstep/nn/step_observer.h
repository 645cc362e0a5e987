#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <span>

#include "lockstep/base/export.h"
#include "lockstep/comm/reduce_op.h"

namespace lockstep {

class MirroredOptimizerBase;

namespace detail {
struct OptimizerCore;  // nn/optimizer_core.h
struct ReplicaPart;
}  // namespace detail

/// Which step of which optimizer, on which replica.
struct LOCKSTEP_EXPORT StepMoment {
  const detail::OptimizerCore& core;  ///< used by Lockstep's own observers
  const detail::ReplicaPart& part;    ///< used by Lockstep's own observers
  const char* call = "";              ///< the program's call, such as "minimize"
  ReduceOp op = ReduceOp::Sum;        ///< how gradients are reduced, from `gradients_shown` on

  /// Whether this optimizer takes the step.
  bool is_of(const MirroredOptimizerBase& optimizer) const;
  int replica() const;         ///< among those of this process, from 0
  std::int64_t steps() const;  ///< updates made so far
};

/// Sees an optimizer's steps without taking part in them: attached with `optimizer.observe`, it is called at these
/// moments, in this order. Lockstep's own checks (nn/guards/) are observers too, and come first; then the program's, in
/// the order in which they were attached.
///
/// | moment            | called                                                           | an exception there         |
/// |-------------------|------------------------------------------------------------------|----------------------------|
/// | `run_begins`      | per replica, before the function given to `run`                  | no weight has changed      |
/// | `before_backward` | per replica, with the loss that the program gave                 | no weight has changed      |
/// | `gradients_wait`  | per replica, before the program can change gradients             | no weight has changed      |
/// | `gradients_taken` | per replica, when a call continues with such gradients           | no weight has changed      |
/// | `gradients_shown` | per replica, before it meets the others                          | no weight has changed      |
/// | `marks_differ`    | per replica, in a meeting                                        | no weight has changed      |
/// | `agreed`          | per replica, in the same meeting: all take the same step         | no weight has changed      |
/// | `dropped`         | per replica, when its gradients are forgotten                    | as `updated`, after a step |
/// | `updated`         | per replica, when all replicas have updated the weights          | the update is made         |
/// | `run_ended`       | once, on the caller's thread; not if the run failed              | the run counts as failed   |
///
/// An exception ends the list, so that later observers do not see the moment, and the run: one replica may throw by
/// itself, and the others stop at their next meeting. The next run continues as after any failed run. Skipped steps,
/// and calls inside a window of `set_accumulate`, have no `updated`. Of a step replayed as a CUDA graph observers see
/// only `updated`.
///
/// State belongs to the observer. Replicas call it concurrently: keep per-replica state by `moment.replica()`.
class LOCKSTEP_EXPORT StepObserver {
 public:
  virtual ~StepObserver() = default;

  virtual void run_begins(int /*replica*/) {}
  virtual void before_backward(const StepMoment&, const at::Tensor& /*loss*/) {}
  virtual void gradients_wait(const StepMoment&) {}
  virtual void gradients_taken(const StepMoment&) {}
  virtual void gradients_shown(const StepMoment&) {}
  /// A number that should be the same on all replicas and workers in this step. Called by each replica, after
  /// `gradients_shown`.
  virtual std::int64_t mark(const StepMoment&) { return 0; }
  /// Called if it is not. `marks`: one per replica of this process or, if these agree, one per worker; `member` is which
  /// of the two. Throws FailedPrecondition naming them.
  virtual void marks_differ(const StepMoment&, std::span<const std::int64_t> marks, const char* member);
  virtual void agreed(const StepMoment&) {}
  virtual void updated(const StepMoment&) {}
  virtual void dropped(const StepMoment&) {}
  virtual void run_ended() {}
};

}  // namespace lockstep
