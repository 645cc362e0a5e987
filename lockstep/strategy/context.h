#pragma once

#include <optional>

#include "lockstep/base/export.h"
#include "lockstep/values/current_component.h"

namespace lockstep {

class Strategy;
class ReplicaContext;

/// Every thread is in one of four contexts, and what a call means depends on it:
///
/// | context       | entered by                                        | calls that belong there                    |
/// |---------------|---------------------------------------------------|--------------------------------------------|
/// | default       | nothing: every thread starts there                | plain LibTorch code; one replica with id 0 |
/// | cross-replica | `auto scope = strategy.scope();`, merge functions | `run`, `reduce`, creating variables        |
/// | replica       | the function given to `run`                       | `all_reduce`, `all_gather`, `merge_call`   |
/// | update        | the function given to `extended().update`         | changing one component of a variable       |
///
/// A thread that the user starts begins in the default context.
LOCKSTEP_EXPORT bool in_replica_context();        ///< true in the default context too
LOCKSTEP_EXPORT bool in_cross_replica_context();  ///< true in the update context too
LOCKSTEP_EXPORT bool has_strategy();              ///< false in the default context

/// The strategy of the current context; the one-replica default strategy where there is none.
LOCKSTEP_EXPORT Strategy& get_strategy();

/// The replica that is calling; FailedPrecondition in a cross-replica context.
LOCKSTEP_EXPORT ReplicaContext& get_replica_context();

namespace detail {

class RunNotes;  // strategy/detail/run_notes.h

/// One entry of the calling thread's stack of contexts. Entries live in guards on the call stack, so that entering a
/// context allocates nothing.
struct ContextEntry {
  Strategy* strategy;
  ReplicaContext* replica;  ///< null: cross-replica
  ContextEntry* below;
  RunNotes* notes = nullptr;  ///< of the run, in replica context
};

LOCKSTEP_EXPORT ContextEntry* current_context();  ///< null: default context

/// Enters a context for the lifetime of the guard, on this thread.
class LOCKSTEP_EXPORT ContextGuard {
 public:
  /// `replica` null: cross-replica context. `component`: what distributed values resolve to, -1 = none.
  ContextGuard(Strategy& strategy, ReplicaContext* replica, int component);
  ~ContextGuard();
  ContextGuard(const ContextGuard&) = delete;
  ContextGuard& operator=(const ContextGuard&) = delete;

 private:
  ContextEntry entry_;
  ComponentScope component_;
};

/// Turns this thread's scopes of a strategy that ends into scopes of the default strategy.
LOCKSTEP_EXPORT void forget_strategy(const Strategy& strategy);

/// Whether this thread is inside a run of `strategy`, in a merge function too.
LOCKSTEP_EXPORT bool runs_on_replicas_of(const Strategy& strategy);

/// Throws unless `operation` of `strategy` may be called here: in its cross-replica context or the default one.
LOCKSTEP_EXPORT void require_cross_replica(const Strategy& strategy, const char* operation);
/// Throws unless `strategy` is the current one, in whichever context.
LOCKSTEP_EXPORT void require_current_strategy(const Strategy& strategy, const char* operation);

}  // namespace detail

/// Keeps its strategy's cross-replica context open until it goes out of scope: `auto scope = strategy.scope();`.
/// Scopes of one strategy nest; another strategy's scope inside is an error.
class [[nodiscard]] LOCKSTEP_EXPORT Scope {
 public:
  explicit Scope(Strategy& strategy);
  Scope(const Scope&) = delete;
  Scope& operator=(const Scope&) = delete;

 private:
  std::optional<detail::ContextGuard> context_;
};

}  // namespace lockstep
