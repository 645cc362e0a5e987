#pragma once

#include <vector>

#include "lockstep/comm/reduce_op.h"
#include "lockstep/nn/step/gradient_state.h"

namespace lockstep {
class GradScaler;
}

// The trunk: the way of gradients from backward to the weights, in the order of docs/design.md, section 9. How a step
// is taken is decided in one place, plan_step (step_plan.h); the phases are files next to this one, except for the
// last.
namespace lockstep::detail {

struct OptimizerCore;
struct ReplicaPart;

/// All phases after backward. Returns whether the weights were updated. `call`: the program's call.
bool take_step(OptimizerCore& core, ReplicaPart& mine, ReduceOp op, GradScaler* scaler, const char* call);

// The same in parts, between which the program can access the sums.
void reduce_in_parts(OptimizerCore& core, ReplicaPart& mine, ReduceOp op, const char* call);
void update_and_publish(OptimizerCore& core, ReplicaPart& mine);

/// Publish: parameters with a gradient of one of these kinds have changed for this replica too.
void count_step(OptimizerCore& core, ReplicaPart& mine, const std::vector<GradientKind>& kinds);

}  // namespace lockstep::detail
