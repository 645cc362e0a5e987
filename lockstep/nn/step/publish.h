#pragma once

// Phase 5 of a step, publish: every replica takes the new weights for its own.
namespace lockstep::detail {

struct OptimizerCore;
struct ReplicaPart;

/// Marks the leaves as changed, counts the step, forgets the gradients, and and tells the observers.
void publish_step(OptimizerCore& core, ReplicaPart& mine);

}  // namespace lockstep::detail
