#include "lockstep/strategy/context.h"

#include "lockstep/base/error.h"
#include "lockstep/base/text.h"
#include "lockstep/strategy/default_strategy.h"
#include "lockstep/strategy/strategy.h"
#include "lockstep/strategy/strategy_words.h"

namespace lockstep {
namespace detail {
namespace {

thread_local ContextEntry* innermost = nullptr;

[[noreturn]] void throw_mixed(const char* operation) {
  throw FailedPrecondition(
      errors::kMixedStrategies,
      {.what = "two strategies cannot be mixed on one thread",
       .where = operation,
       .seen = "the scope or replica function of another strategy is active on this thread",
       .help = "leave that scope first, or call this on the strategy that get_strategy() returns"});
}

[[noreturn]] void throw_needs_scope(const char* operation) {
  throw FailedPrecondition(errors::kWrongContext, {.what = str(operation, " needs the scope of its strategy"),
                                                   .where = operation,
                                                   .help = "open it first: auto scope = strategy.scope();"});
}

}  // namespace

ContextEntry* current_context() { return innermost; }

ContextGuard::ContextGuard(Strategy& strategy, ReplicaContext* replica, int component)
    : entry_{&strategy, replica, innermost, nullptr},
      component_(component, /*updated=*/replica == nullptr && component >= 0) {
  innermost = &entry_;
}

// Scopes are objects, which may end in any order: each takes out its own entry.
ContextGuard::~ContextGuard() {
  ContextEntry** link = &innermost;
  while (*link != nullptr && *link != &entry_) link = &(*link)->below;
  if (*link != nullptr) *link = entry_.below;
}

void forget_strategy(const Strategy& strategy) {
  for (ContextEntry* entry = innermost; entry != nullptr; entry = entry->below) {
    if (entry->strategy == &strategy) entry->strategy = &default_strategy();
  }
}

bool runs_on_replicas_of(const Strategy& strategy) {
  for (const auto* entry = current_context(); entry != nullptr; entry = entry->below)
    if (entry->replica != nullptr && entry->strategy == &strategy) return true;
  return false;
}

void require_cross_replica(const Strategy& strategy, const char* operation) {
  if (innermost == nullptr || (innermost->strategy == &strategy && innermost->replica == nullptr)) return;
  const WordsOf words(strategy);
  if (innermost->strategy != &strategy) {
    if (innermost->strategy->is_default()) throw_needs_scope(operation);
    throw_mixed(operation);
  }
  throw FailedPrecondition(
      errors::kWrongContext,
      {.what = str(operation, " was called inside a replica function: it belongs to the cross-replica context"),
       .where = str(operation, ", on replica ", innermost->replica->replica_id_in_sync_group()),
       .help = str("call strategy.", operation, " outside of the function given to run, or inside ",
                   "get_replica_context().merge_call(...); inside replicas use all_reduce and all_gather")});
}

void require_current_strategy(const Strategy& strategy, const char* operation) {
  if (innermost != nullptr && innermost->strategy == &strategy) return;
  if (innermost == nullptr || innermost->strategy->is_default()) throw_needs_scope(operation);
  throw_mixed(operation);
}

}  // namespace detail

using detail::current_context;

bool in_cross_replica_context() { return current_context() != nullptr && current_context()->replica == nullptr; }
bool in_replica_context() { return !in_cross_replica_context(); }
bool has_strategy() { return current_context() != nullptr && !current_context()->strategy->is_default(); }
Strategy& get_strategy() { return current_context() != nullptr ? *current_context()->strategy : default_strategy(); }

ReplicaContext& get_replica_context() {
  const detail::ContextEntry* top = current_context();
  if (top == nullptr) return default_strategy().replica_context(0);
  if (top->replica == nullptr) {
    throw FailedPrecondition(
        errors::kWrongContext,
        {.what = "get_replica_context was called outside of replicas: this code runs once for all of them",
         .help = "call it inside the function given to run; in_replica_context() says where you are"});
  }
  return *top->replica;
}

Scope::Scope(Strategy& strategy) {
  if (strategy.is_default()) {
    // The default context needs no entering: it is where every thread starts.
    if (!has_strategy()) return;
    throw FailedPrecondition(errors::kMixedStrategies,
                             {.what = "the scope of one strategy cannot be opened inside that of another",
                              .where = "scope of the default strategy",
                              .help = "leave the other strategy's scope first"});
  }
  detail::require_cross_replica(strategy, "scope");
  context_.emplace(strategy, nullptr, -1);
}

}  // namespace lockstep
