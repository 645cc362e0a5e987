#pragma once

namespace lockstep {
class GradScaler;
}

// Phase 3 of a step, check and clip: everything between the sums and the update. Each function is called by every
// replica, works on the segments that the replica owns, and decides alike on all.
namespace lockstep::detail {

struct OptimizerCore;
struct ReplicaPart;

/// Does what the step's plan has between sum and update; `scaler` if its loss is scaled. False: the step is skipped.
bool check_and_clip(OptimizerCore& core, ReplicaPart& mine, GradScaler* scaler);

// The parts of it, which the program may call itself.
/// Whether all gradients of all replicas are finite.
bool are_all_finite(const OptimizerCore& core, ReplicaPart& mine);

/// Applies the NonFinitePolicy setting to the reduction's result: throws, or returns false for a step to be skipped.
bool passes_finite_check(const OptimizerCore& core, ReplicaPart& mine);

/// Divides by the loss scale and reports to the scaler. False: a gradient is not finite, and the step is skipped.
bool unscale(const OptimizerCore& core, ReplicaPart& mine, GradScaler& scaler);

/// Scales all gradients down to a total norm of at most `max_norm`; returns the norm before. Every worker has the sums
/// of all workers by now, and its replicas own all parameters together: all compute the same norm without
/// communication.
double clip_global_norm(OptimizerCore& core, ReplicaPart& mine, double max_norm);
/// Clamps each element to [-limit, limit].
void clip_value(const OptimizerCore& core, ReplicaPart& mine, double limit);

/// For a clip called by the program: throws, on every worker, unless all workers called the same.
void require_same_clip(const OptimizerCore& core, const char* call, double limit);

/// Throws InvalidArgument unless the number is positive. `name`: the user's name for it.
void require_positive(double value, const char* name);
/// Throws unless gradients are reduced, and if they are still scaled when `operation` needs unscaled ones.
void require_reduced(const ReplicaPart& mine, const char* operation);
void require_unscaled(const ReplicaPart& mine, const char* operation);

}  // namespace lockstep::detail
