#pragma once

#include <ATen/core/Tensor.h>

// A window of set_accumulate: gradients of several calls of minimize that wait for one update. zero_grad of the model may
// drop them in between, which leaves no trace but the gradients themselves.
namespace lockstep::detail {

struct OptimizerCore;
struct ReplicaPart;

/// Waits for a GPU.
bool holds_numbers(const at::Tensor& gradient);

/// After a backward whose gradients wait for the program's next call: remembers where there was a number, to see later that
/// gradients are gone.
void let_gradients_wait(const OptimizerCore& core, ReplicaPart& mine, const char* call);

/// Before the next backward, if gradients wait for it: outside of a window, gradients that zero_grad of a module has dropped count for nothing. In an open
/// window nothing is decided here: a replica that has computed nothing but zeros cannot see what zero_grad does, and the
/// others must not wait for it. Each notes what it sees; `drop_calls_of_window` decides.
void look_for_dropped(const OptimizerCore& core, ReplicaPart& mine);

/// Before the call of minimize that ends a window: how many of its calls count for nothing, because zero_grad of the model
/// has dropped their gradients. A meeting, and the same on every replica of every worker. They are taken off
/// `progress.accumulated`.
int drop_calls_of_window(const OptimizerCore& core, ReplicaPart& mine);

/// Whether the gradients of earlier calls are gone on this replica: a run has failed, or model.zero_grad() has dropped
/// them.
bool begins_anew(const OptimizerCore& core, ReplicaPart& mine);
/// Once, on replica 0, where `call` drops the gradients that so many calls of minimize have left in an open window.
void warn_of_ended_window(const OptimizerCore& core, const ReplicaPart& mine, const char* call, int calls);

}  // namespace lockstep::detail
