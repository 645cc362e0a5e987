#pragma once

#include <ATen/core/Tensor.h>

#include "lockstep/base/function_ref.h"
#include "lockstep/comm/reduce_op.h"

namespace lockstep {
class GradScaler;
}

// Phase 1 of a step, collect: every replica goes backward, shows its gradients, and all agree on what they are.
namespace lockstep::detail {

struct OptimizerCore;
struct ReplicaPart;

/// Adds the gradients of `loss` to those that are there; with a scaler, of the scaled loss.
void go_backward(OptimizerCore& core, ReplicaPart& mine, const at::Tensor& loss, const GradScaler* scaler);

/// Remembers one element of each gradient while gradients wait for the program's next call.
void sample_gradients(const OptimizerCore& core, ReplicaPart& mine);
/// Once, where the program has written to gradients that wait for their reduction.
void warn_of_changed_gradients(OptimizerCore& core, ReplicaPart& mine);

/// Shows this replica's gradients and calls `work` once all replicas have shown theirs and agree: the same call, the
/// same modules, gradients of one kind. None goes on before all have finished `work`. Throws, the same on every replica
/// and before `work`, if they do not agree.
void meet_with_gradients(OptimizerCore& core, ReplicaPart& mine, ReduceOp op, const char* call,
                         FunctionRef<void()> work);

/// Forgets the gradients of this replica, and an open window with them.
void drop_gradients(const OptimizerCore& core, ReplicaPart& mine);

/// Before the call of minimize that ends a window: how many of its calls count for nothing, because zero_grad of the model
/// has dropped their gradients. A meeting, and the same on every replica. They are taken off `progress.accumulated`.
int drop_calls_of_window(const OptimizerCore& core, ReplicaPart& mine);

/// Whether the gradients of earlier calls are gone on this replica: a run has failed, or model.zero_grad() has dropped
/// them.
bool begins_anew(const OptimizerCore& core, ReplicaPart& mine);
/// Once, on replica 0, where `call` drops the gradients that so many calls of minimize have left in an open window.
void warn_of_ended_window(const OptimizerCore& core, ReplicaPart& mine, const char* call, int calls);

/// Whether a run has failed since the gradients were last dropped. Replicas that had gone backward by then hold
/// gradients of a step that never came.
bool has_failed_run(const OptimizerCore& core, const ReplicaPart& mine);
void require_no_failed_run(const OptimizerCore& core, const ReplicaPart& mine, const char* operation);

}  // namespace lockstep::detail
