#pragma once

#include <ATen/core/Tensor.h>

#include <string>
#include <vector>

#include "lockstep/base/function_ref.h"
#include "lockstep/comm/reduce_op.h"
#include "lockstep/nn/step/gradient_state.h"

namespace lockstep {
class GradScaler;
}

// Phase 1 of a step, collect: every replica runs backward and publishes its gradients, and all agree on them.
namespace lockstep::detail {

struct OptimizerCore;
struct ReplicaPart;

/// Adds the gradients of `loss` to the existing ones; with a scaler, of the scaled loss. `call`: the program's call.
void go_backward(OptimizerCore& core, ReplicaPart& mine, const at::Tensor& loss, const GradScaler* scaler,
                 const char* call);

/// Publishes this replica's gradients and calls `work` once all replicas have done so and agree: the same call, the
/// same modules, gradients of the same kinds. No replica continues before all have finished `work`. Throws, the same on
/// every replica and before `work`, if they do not agree.
void meet_with_gradients(OptimizerCore& core, ReplicaPart& mine, ReduceOp op, const char* call,
                         FunctionRef<void()> work);

/// Classifies each parameter's gradient over the replicas of this process, which have published theirs. Throws, the
/// same on every replica, if it is sparse on one and dense on another.
void classify_gradients(const OptimizerCore& core, std::vector<GradientKind>& kinds);
/// Throws that `replica` has a gradient of this kind, and another one does not.
[[noreturn]] void throw_different_kinds(const std::string& parameter, const std::string& replica, GradientKind kind);

/// Drops the gradients of this replica, and with them an open window.
void drop_gradients(const OptimizerCore& core, ReplicaPart& mine);

/// Throws if a run has failed since the gradients were last dropped.
void require_no_failed_run(const OptimizerCore& core, const ReplicaPart& mine, const char* operation);

}  // namespace lockstep::detail
