#pragma once

namespace lockstep {
class GradScaler;
}

// Phase 3 of a step, check and clip: what may happen to the sums before the update. Each function is called by every
// replica, works on the segments that the replica owns, and comes to the same answer on all.
namespace lockstep::detail {

struct OptimizerCore;
struct ReplicaPart;

/// What the plan of a step has between sum and update; `scaler` where its loss is scaled. False: the step is skipped.
bool check_and_clip(OptimizerCore& core, ReplicaPart& mine, GradScaler* scaler);

// The parts of that, which the program may call by itself.
/// Whether all gradients of all replicas are finite.
bool are_all_finite(const OptimizerCore& core, ReplicaPart& mine);

/// Acts as NotFinite says on what the reduction has found: throws, or returns false for a step that is skipped.
bool may_update(const OptimizerCore& core, ReplicaPart& mine);

/// Divides by the loss scale and reports to the scaler. False: a gradient is not finite, and the step is skipped.
bool unscale(const OptimizerCore& core, ReplicaPart& mine, GradScaler& scaler);

/// Shortens all gradients together to at most `max_norm`; returns their norm before. Every worker has the sums of all
/// workers by now, and its replicas own all parameters together: all compute the same norm, and nothing travels.
double clip_global_norm(OptimizerCore& core, ReplicaPart& mine, double max_norm);
/// Clamps each element to [-limit, limit].
void clip_value(const OptimizerCore& core, ReplicaPart& mine, double limit);

/// For a clip that the program has called itself: throws, on every worker, unless all have called the same.
void require_same_clip(const OptimizerCore& core, const char* call, double limit);

/// Throws InvalidArgument unless the number is positive. `name`: how the user knows it.
void require_positive(double value, const char* name);
/// Throws unless gradients are reduced, and where `operation` would meet those of a scaled loss.
void require_reduced(const ReplicaPart& mine, const char* operation);
void require_unscaled(const ReplicaPart& mine, const char* operation);

}  // namespace lockstep::detail
