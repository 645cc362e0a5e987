#pragma once

#include <cstdint>

#include "lockstep/comm/reduce_op.h"
#include "lockstep/strategy/worker_collectives.h"

// What workers compare of a step: in numbers at every step, and in words where the numbers differ.
namespace lockstep::detail {

struct OptimizerCore;
struct StepCall;

/// Of all that the program can set of an optimizer: the options of each group, and what `set_*` has set.
std::uint64_t mark_of_settings(const OptimizerCore& optimizer);
workers::Texts lines_of_settings(const OptimizerCore& optimizer);

/// Of the call, and of what is frozen or in training mode.
std::uint64_t mark_of_call(const StepCall& call, ReduceOp op);
workers::Texts lines_of_call(const StepCall& call, ReduceOp op);

}  // namespace lockstep::detail
