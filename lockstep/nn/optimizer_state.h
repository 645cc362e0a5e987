#pragma once

#include "lockstep/nn/optimizer_traits.h"

// What an optimizer remembers, as named tensors: readable, and independent of how parameters are shared out among
// replicas. For checkpoints.
namespace lockstep::detail {

struct OptimizerCore;
struct ReplicaPart;

/// Throws inside of run, where an update has failed, and in an open window.
void require_readable_state(const OptimizerCore& core, const char* operation);
/// Concatenates the states of the segments, parameter by parameter. Outside of run.
OptimizerState read_state(const OptimizerCore& core);
/// Takes them apart again. Changes nothing unless all of it fits. Outside of run.
void write_state(OptimizerCore& core, const OptimizerState& state);
// The parts of that, which also work after a failed update.
void require_fitting_state(const OptimizerCore& core, const OptimizerState& state);
void replace_state(OptimizerCore& core, const OptimizerState& state);
/// Throws where the options of a group ask for something that this replica's state was begun without.
void require_state_for_options(const OptimizerCore& core, const ReplicaPart& mine, std::size_t group);
/// What is kept for `weights`, on their device. Numbers, and what else a class keeps on the host, stay there.
at::Tensor state_beside(const at::Tensor& weights, const at::Tensor& state);
/// The state of one parameter, by its index.
ParameterState gather_state(const OptimizerCore& core, int parameter);

}  // namespace lockstep::detail
