#pragma once

#include "lockstep/nn/optimizer_traits.h"

// Parameters with sparse gradients: LibTorch's classes update them as a whole, so one replica owns each of them from
// the first sparse gradient on.
namespace lockstep::detail {

struct OptimizerCore;
struct ReplicaPart;

/// Whether a parameter that is cut into shards has a sparse gradient. Throws if the optimizer does not support sparse
/// ones. Every replica decides alike.
bool has_new_sparse(const OptimizerCore& core, const ReplicaPart& mine);
/// Replica 0 gives each of these to one owner while the others wait.
void deal_out_new_sparse(OptimizerCore& core, const ReplicaPart& mine);

/// Gives a parameter that is cut into shards, with its state, to one replica. Call while no other replica is working.
void deal_out_whole(OptimizerCore& core, int parameter);

/// Whether any state of a parameter is kept by rows, as momentum of sparse gradients is.
bool has_sparse_part(const ParameterState& state);

/// Makes state of sparse gradients dense if the next gradient is dense, and a sparse gradient dense if the optimizer
/// would add dense momentum to it: LibTorch cannot add the two, and fails in the middle of the update.
void reconcile_layouts(const OptimizerCore& core, ReplicaPart& mine);

}  // namespace lockstep::detail
