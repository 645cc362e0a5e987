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

/// Adds the gradients of `loss` to those that are there; with a scaler, of the scaled loss. `call`: of the program.
void go_backward(OptimizerCore& core, ReplicaPart& mine, const at::Tensor& loss, const GradScaler* scaler,
                 const char* call);

/// Shows this replica's gradients and calls `work` once all replicas have shown theirs and agree: the same call, the
/// same modules, gradients of one kind. None goes on before all have finished `work`. Throws, the same on every replica
/// and before `work`, if they do not agree.
void meet_with_gradients(OptimizerCore& core, ReplicaPart& mine, ReduceOp op, const char* call,
                         FunctionRef<void()> work);

/// Forgets the gradients of this replica, and an open window with them.
void drop_gradients(const OptimizerCore& core, ReplicaPart& mine);

/// Whether a run has failed since the gradients were last dropped. Replicas that had gone backward by then hold
/// gradients of a step that never came.
bool has_failed_run(const OptimizerCore& core, const ReplicaPart& mine);
void require_no_failed_run(const OptimizerCore& core, const ReplicaPart& mine, const char* operation);

}  // namespace lockstep::detail
