#pragma once

#include <optional>

#include "lockstep/base/export.h"
#include "lockstep/values/current_component.h"

namespace lockstep {

class Strategy;
class ReplicaContext;

/// Every thread is in one of four contexts, which decide the effect of a call:
///
/// | context       | entered by                                        | calls that belong there                    |
/// |---------------|---------------------------------------------------|--------------------------------------------|
/// | default       | nothing: every thread starts there                | plain LibTorch code; one replica with id 0 |
/// | cross-replica | `auto scope = strategy.scope();`, merge functions | `run`, `reduce`, creating variables        |
/// | replica       | the function given to `run`                       | `all_reduce`, `all_gather`, `merge_call`   |
/// | update        | the function given to `extended().update`         | changing one component of a variable       |
///
/// A thread that you start begins in the default context.
LOCKSTEP_EXPORT bool in_replica_context();        ///< true in the default context too
LOCKSTEP_EXPORT bool in_cross_replica_context();  ///< true in the update context too
LOCKSTEP_EXPORT bool has_strategy();              ///< false in the default context

/// The strategy of the current context; in the default context, the default strategy with one replica.
LOCKSTEP_EXPORT Strategy& get_strategy();

/// The calling replica; throws FailedPrecondition in a cross-replica context.
LOCKSTEP_EXPORT ReplicaContext& get_replica_context();

namespace detail {

class RunNotes;  // strategy/detail/run_notes.h

/// One entry of the calling thread's stack of contexts. Entries live in guards on the call stack, so entering a context
/// allocates nothing.
struct ContextEntry {
  Strategy* strategy;
  ReplicaContext* replica;  ///< null: cross-replica
  ContextEntry* below;
  RunNotes* notes = nullptr;  ///< notes of the run, in replica context
};

LOCKSTEP_EXPORT ContextEntry* current_context();  ///< null: default context

/// Enters a context for the lifetime of the guard, on this thread.
class LOCKSTEP_EXPORT ContextGuard {
 public:
  /// `replica` null: cross-replica context. `component`: the index that distributed values resolve to; -1: none.
  ContextGuard(Strategy& strategy, ReplicaContext* replica, int component);
  ~ContextGuard();
  ContextGuard(const ContextGuard&) = delete;
  ContextGuard& operator=(const ContextGuard&) = delete;

 private:
  ContextEntry entry_;
  ComponentScope component_;
};

/// Turns this thread's scopes of a strategy that is being destroyed into scopes of the default strategy.
LOCKSTEP_EXPORT void forget_strategy(const Strategy& strategy);

/// Whether this thread is inside a run of `strategy`; true in a merge function too.
LOCKSTEP_EXPORT bool runs_on_replicas_of(const Strategy& strategy);

/// Throws unless `operation` of `strategy` may be called here: in its cross-replica context or in the default context.
LOCKSTEP_EXPORT void require_cross_replica(const Strategy& strategy, const char* operation);
/// Throws unless `strategy` is the current one, in any context.
LOCKSTEP_EXPORT void require_current_strategy(const Strategy& strategy, const char* operation);

}  // namespace detail

/// Keeps its strategy's cross-replica context open until it goes out of scope: `auto scope = strategy.scope();`. Scopes
/// of the same strategy nest; opening another strategy's scope inside one is an error.
class [[nodiscard]] LOCKSTEP_EXPORT Scope {
 public:
  explicit Scope(Strategy& strategy);
  Scope(const Scope&) = delete;
  Scope& operator=(const Scope&) = delete;

 private:
  std::optional<detail::ContextGuard> context_;
};

}  // namespace lockstep
