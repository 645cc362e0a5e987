#pragma once

#include "lockstep/nn/optimizer_traits.h"

// An optimizer's state as named tensors: readable, and independent of how parameters are divided among replicas. For
// checkpoints.
namespace lockstep::detail {

struct OptimizerCore;
struct ReplicaPart;

/// Throws inside of run, after a failed update, and in an open window.
void require_readable_state(const OptimizerCore& core, const char* operation);
/// Concatenates the states of the segments, parameter by parameter. Outside of run.
OptimizerState read_state(const OptimizerCore& core);
/// The reverse. Changes nothing unless all of it fits. Outside of run.
void write_state(OptimizerCore& core, const OptimizerState& state);
// The halves of write_state, which also work after a failed update.
void require_fitting_state(const OptimizerCore& core, const OptimizerState& state);
void replace_state(OptimizerCore& core, const OptimizerState& state);
/// Throws if the options of a group require state that this replica began without.
void require_state_for_options(const OptimizerCore& core, const ReplicaPart& mine, std::size_t group);
/// Moves state for `weights` to their device. Numbers, and other state that a class keeps on the host, stay there.
at::Tensor state_beside(const at::Tensor& weights, const at::Tensor& state);
/// The state of one parameter, by its index.
ParameterState gather_state(const OptimizerCore& core, int parameter);

}  // namespace lockstep::detail
