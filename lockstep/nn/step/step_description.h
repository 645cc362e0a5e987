#pragma once

#include <cstdint>

#include "lockstep/comm/reduce_op.h"
#include "lockstep/strategy/worker_collectives.h"

// Descriptions of a step that workers compare: as numbers at every step, and as text if the numbers differ.
namespace lockstep::detail {

struct OptimizerCore;
struct StepCall;

/// A mark of everything the program can set on an optimizer: the options of each group, and the settings of `set_*`.
std::uint64_t mark_of_settings(const OptimizerCore& optimizer);
workers::Texts lines_of_settings(const OptimizerCore& optimizer);

/// A mark of the call, and of frozen parameters and training modes.
std::uint64_t mark_of_call(const StepCall& call, ReduceOp op);
workers::Texts lines_of_call(const StepCall& call, ReduceOp op);

}  // namespace lockstep::detail
