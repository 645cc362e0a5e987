#pragma once

#include "lockstep/base/function_ref.h"
#include "lockstep/comm/local/replica_team.h"
#include "lockstep/strategy/replica_context.h"

namespace lockstep::detail {

struct OptimizerCore;

/// A replica's call of an optimizer, as brought to a meeting. Everything but the payload must be the same on every
/// replica.
struct StepCall {
  const OptimizerCore* optimizer = nullptr;
  const char* call = "";  ///< the user's call
  double argument = 0;    ///< its argument
  const void* payload = nullptr;
  int window_calls = 0;  ///< ReplicaPart::window_calls, if a window ends
};

/// The call of `apply_gradients` whose argument is a mark of the gradients.
inline constexpr const char* kGivenByAll = "apply_gradients(AllReplicas)";

/// How long a meeting waits for a late replica: the strategy's timeout, or (once weights have changed) without limit.
enum class WaitFor { Timeout, Ever };

/// All replicas arrive before `work` begins, and all finish it before any continues. Throws, the same on every replica
/// and before `work`, if they came for different calls, or if one is later than the strategy's timeout_seconds. A
/// single replica just does the work.
void meet(const char* name, const StepCall& mine, FunctionRef<void()> work, WaitFor wait = WaitFor::Timeout);

/// Inside a meeting to which every replica brought a StepCall: throws, the same on every replica, if they differ.
void require_same_call(const local::Seat& seat);

/// Inside the work of a meeting: calls `see` with every replica's payload, in order.
template <class T, class See>
void for_each_payload(const T& mine, See&& see) {
  const local::Seat* seat = get_replica_context().seat();
  if (seat == nullptr) return see(mine);
  for (int k = 0; k < seat->size(); ++k)
    see(*static_cast<const T*>(static_cast<const StepCall*>(seat->payload_of(k))->payload));
}

}  // namespace lockstep::detail
