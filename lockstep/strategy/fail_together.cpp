#include "lockstep/strategy/fail_together.h"

#include <exception>

#include "lockstep/base/error.h"
#include "lockstep/base/text.h"
#include "lockstep/comm/worker_group.h"
#include "lockstep/strategy/call_place.h"
#include "lockstep/strategy/context.h"
#include "lockstep/strategy/detail/strategy_access.h"
#include "lockstep/strategy/owners_call.h"
#include "lockstep/strategy/strategy.h"

namespace lockstep::detail {
namespace {

/// 0 for exceptions that are not Lockstep's.
int number_of_current_error() {
  try {
    throw;
  } catch (const Error& error) {
    return error.number();
  } catch (...) {
    return 0;
  }
}

}  // namespace

void tell_workers_of_failure(const Strategy& strategy, const char* operation) noexcept {
  try {
    WorkerGroup* const workers = StrategyAccess::workers(strategy);
    const int number = number_of_current_error();
    const bool is_known_to_all = number > 0 && number < errors::kWrongContext;
    if (workers == nullptr || is_known_to_all || runs_on_replicas_of(strategy) || is_in_owners_call()) return;
    // The texts differ, as the replicas do that they name.
    workers->barrier(str(operation, " that failed with ", number > 0 ? str("L", number) : "an exception", " (",
                         CallPlace::current(), ")"),
                     deadline_of(strategy.communication()));
  } catch (const std::exception&) {  // others did not fail: they have heard of it, and this worker throws why
  }
}

}  // namespace lockstep::detail
