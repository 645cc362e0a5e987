#pragma once

#include "lockstep/nn/optimizer_traits.h"

// Parameters whose gradients are sparse: LibTorch's classes update them as a whole, so that one replica owns each of
// them from the first sparse gradient on.
namespace lockstep::detail {

struct OptimizerCore;
struct ReplicaPart;

/// Whether a parameter that is cut into shards has a sparse gradient. Throws if the optimizer cannot take sparse ones.
/// Every replica comes to the same answer.
bool has_new_sparse(const OptimizerCore& core, const ReplicaPart& mine);
/// Replica 0 gives all of these to one owner each, while the others wait.
void deal_out_new_sparse(OptimizerCore& core, const ReplicaPart& mine);

/// Gives a parameter that is cut into shards, and what is remembered about it, to one replica. While no other replica
/// is at work.
void deal_out_whole(OptimizerCore& core, int parameter);

/// Whether anything that is remembered of a parameter is kept by rows, as momentum of sparse gradients is.
bool has_sparse_part(const ParameterState& state);

/// Makes dense what is remembered of sparse gradients where the next one is dense, and a sparse gradient where the
/// optimizer would add dense momentum to it: LibTorch cannot add the two, and finds out in the middle of the update.
void reconcile_layouts(const OptimizerCore& core, ReplicaPart& mine);

}  // namespace lockstep::detail
