#pragma once

#include "lockstep/base/error.h"
#include "lockstep/base/text.h"
#include "lockstep/strategy/context.h"
#include "lockstep/strategy/detail/runs.h"
#include "lockstep/strategy/detail/strategy_access.h"
#include "lockstep/strategy/replica_context.h"

namespace lockstep::detail {

/// For functions that act on the models or settings of all replicas, which replicas read without a lock.
inline void require_outside_of_run(const char* operation,
                                   const char* help = "call it once, before or after run; it holds for all replicas") {
  const ContextEntry* top = current_context();
  if (top == nullptr || top->replica == nullptr) return;
  throw FailedPrecondition(errors::kWrongContext,
                           {.what = str(operation, " belongs outside of the function given to strategy.run"),
                            .where = str("on replica ", top->replica->replica_id_in_sync_group()),
                            .help = help});
}

/// For functions that read or write weights, buffers or states, which another thread's run may be changing.
inline void require_no_run_elsewhere(const Strategy& strategy, const char* operation) {
  if (!StrategyAccess::runs(strategy).are_elsewhere()) return;
  throw FailedPrecondition(
      errors::kWrongContext,
      {.what = str(operation, " was called while another thread is inside strategy.run"),
       .help = "call it between two runs, on the thread that runs them; what it returns, or a copy of "
               "the tensors, can be handed to another thread"});
}

}  // namespace lockstep::detail
