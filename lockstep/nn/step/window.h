#pragma once

#include <ATen/core/Tensor.h>

// A window of set_accumulate: gradients of several calls of minimize that wait for one update. zero_grad of the model
// may drop them in between, which leaves no trace but the gradients themselves.
namespace lockstep::detail {

struct OptimizerCore;
struct ReplicaPart;

/// Waits for a GPU.
bool holds_numbers(const at::Tensor& gradient);

/// After a backward whose gradients wait for the program's next call: remembers the place of a nonzero number, to see
/// later whether gradients were dropped.
void let_gradients_wait(const OptimizerCore& core, ReplicaPart& mine, const char* call);

/// Before the next backward, if gradients wait for it: outside of a window, gradients dropped by zero_grad of a module
/// are discarded. In an open window nothing is decided here: a replica that computed only zeros cannot see zero_grad's
/// effect, and the others must not wait for it. Each notes what it sees; `drop_calls_of_window` decides.
void look_for_dropped(const OptimizerCore& core, ReplicaPart& mine);

/// Before the call of minimize that ends a window: returns how many of its calls are void because zero_grad of the
/// model dropped their gradients. A meeting, and the same on every replica of every worker. Subtracts them from
/// `progress.accumulated`.
int drop_calls_of_window(const OptimizerCore& core, ReplicaPart& mine);

/// Whether the gradients of earlier calls are gone on this replica: a run failed, or model.zero_grad() dropped them.
bool begins_anew(const OptimizerCore& core, ReplicaPart& mine);
/// Warns once, on replica 0, that `call` drops the gradients of so many calls of minimize in an open window.
void warn_of_ended_window(const OptimizerCore& core, const ReplicaPart& mine, const char* call, int calls);

}  // namespace lockstep::detail
