#include "lockstep/nn/step/meeting.h"

#include <string_view>

#include "lockstep/base/error.h"
#include "lockstep/base/text.h"
#include "lockstep/comm/communication_options.h"
#include "lockstep/strategy/replica_name.h"
#include "lockstep/strategy/strategy.h"

namespace lockstep::detail {
namespace {

constexpr const char* kSameCalls =
    "call the same optimizers in the same order, with the same arguments, on every replica";

[[noreturn]] void throw_different(std::string what, std::string seen, const char* help = kSameCalls) {
  throw FailedPrecondition(errors::kDifferentCollective,
                           {.what = std::move(what), .seen = std::move(seen), .help = help});
}

std::string name_of(int replica) { return replica_name(static_cast<std::size_t>(replica)); }

}  // namespace

void require_same_call(const local::Seat& seat) {
  const auto brought_by = [&](int k) -> const StepCall& { return *static_cast<const StepCall*>(seat.payload_of(k)); };
  const StepCall& first = brought_by(0);
  for (int k = 1; k < seat.size(); ++k) {
    const StepCall& other = brought_by(k);
    if (std::string_view(other.call) != first.call)
      throw_different("replicas take a step in different ways",
                      str(name_of(0), " called ", first.call, " while ", name_of(k), " called ", other.call));
    if (other.optimizer != first.optimizer)
      throw_different("replicas met with different optimizers",
                      str(name_of(0), " and ", name_of(k), " called ", first.call, " of different optimizers"));
    if (other.window_calls != first.window_calls)
      throw_different("replicas have called minimize a different number of times since the last update",
                      str(name_of(0), ": ", first.window_calls, ", ", name_of(k), ": ", other.window_calls),
                      "call minimize and zero_grad in the same order on every replica, even if a batch has no rows; "
                      "call reduce_gradients() and step() to end a window early");
    if (other.argument != first.argument && std::string_view(first.call) == kGivenByAll)
      throw_different("replicas passed different gradients with AllReplicas",
                      lockstep::str("in ", first.call, ", ", name_of(0), " and ", name_of(k)));
    if (other.argument != first.argument)
      throw_different(str("replicas gave different arguments to ", first.call),
                      str(name_of(0), " gave ", first.argument, ", ", name_of(k), " gave ", other.argument));
  }
}

void meet(const char* name, const StepCall& mine, FunctionRef<void()> work, WaitFor wait) {
  const ReplicaContext& replica = *current_context()->replica;
  local::Seat* seat = replica.seat();
  if (seat == nullptr) return work();
  // Whether a replica was late is certain only when all have left the meeting. `work` must not have changed anything by
  // then, so with a deadline an empty meeting precedes it.
  const CommunicationOptions& options = replica.strategy().communication();
  if (wait == WaitFor::Timeout && options.timeout_seconds && *options.timeout_seconds > 0)
    seat->exchange(
        name, &mine, [] {}, deadline_of(options));
  seat->exchange(name, &mine, [&] {
    require_same_call(*seat);
    work();
  });
}

}  // namespace lockstep::detail
