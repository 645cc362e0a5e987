#pragma once

#include "lockstep/base/export.h"

namespace lockstep {

namespace detail {
// Exported, so that the library and its users share one.
LOCKSTEP_EXPORT inline constinit thread_local int component_of_thread = -1;
LOCKSTEP_EXPORT inline constinit thread_local bool component_is_updated = false;
}  // namespace detail

/// The component of distributed values that this thread represents: the index of the local replica inside a replica
/// function, of the updated component inside an update function, -1 elsewhere.
inline int current_component() { return detail::component_of_thread; }

/// Whether the cause is an update function, in which a PerReplica does not convert to one of its components.
inline bool in_update() { return detail::component_is_updated; }

/// Makes this thread represent one component until the end of the block. Scopes nest and restore the previous value.
///
///     ComponentScope scope(1);
///     const Tensor& mine = per_replica.get();  // component 1
class ComponentScope {
 public:
  explicit ComponentScope(int index, bool updated = false)
      : outer_(detail::component_of_thread), outer_updated_(detail::component_is_updated) {
    detail::component_of_thread = index;
    detail::component_is_updated = updated;
  }
  ~ComponentScope() {
    detail::component_of_thread = outer_;
    detail::component_is_updated = outer_updated_;
  }
  ComponentScope(const ComponentScope&) = delete;
  ComponentScope& operator=(const ComponentScope&) = delete;

 private:
  int outer_;
  bool outer_updated_;
};

}  // namespace lockstep
