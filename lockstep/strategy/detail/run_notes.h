#pragma once

#include <c10/util/SmallVector.h>

#include <cstddef>
#include <memory>
#include <memory_resource>
#include <span>

#include "lockstep/base/local_values.h"
#include "lockstep/strategy/context.h"
#include "lockstep/strategy/detail/step_rows.h"

namespace lockstep::detail {

/// Something that replicas share, such as the weights of a model. It notices who changes it inside run: each replica
/// remembers it when its function begins, and compares when it ends. Called on the replica's own thread, except for
/// `prepare` and `end`. A run inside a merge function is part of the run around it: these and `begin` are not called for it.
class RunWatcher {
 public:
  virtual ~RunWatcher() = default;
  /// A run is about to begin; on the caller's thread, before any replica.
  virtual void prepare() const = 0;
  /// A run begins on this replica. The one before may have failed at any point, and so never have come to its `end`.
  virtual void begin(std::size_t local_index) const = 0;
  virtual void remember(std::size_t local_index) const = 0;
  /// Throws if it has changed since it was remembered.
  virtual void require_untouched(std::size_t local_index) const = 0;
  /// A merge function has ended, and what it has changed was changed once. On replica 0's thread, while the others wait.
  virtual void end_of_merge() const = 0;
  /// The run has ended on all replicas. Throws if they have worked with it in different ways; the run then counts as
  /// failed. On the caller's thread.
  virtual void end() const = 0;
};
using RunWatchers = c10::SmallVector<std::shared_ptr<const RunWatcher>, 4>;

/// What belongs to one replica's part of one run and to no other.
class RunNotes {
 public:
  RunNotes(const StepRows& step_rows, std::span<const std::shared_ptr<const RunWatcher>> of_run)
      : rows(step_rows), watchers(of_run), memory_(buffer_, sizeof(buffer_)), locals(&memory_) {}

  const StepRows& rows;
  std::span<const std::shared_ptr<const RunWatcher>> watchers;

 private:
  alignas(std::max_align_t) std::byte buffer_[256];  ///< enough for what a step keeps: it allocates nothing
  std::pmr::monotonic_buffer_resource memory_;

 public:
  LocalValues locals;
};

/// The T that belongs to the calling replica's part of the run under way, made when first asked for; null outside of run.
template <class T>
T* run_local() {
  const ContextEntry* const here = current_context();
  return here == nullptr || here->notes == nullptr ? nullptr : &here->notes->locals.get<T>();
}

/// Of the run under way, for what Lockstep itself changes in it, or lets the user change once: `require_untouched` before,
/// `remember` after. On every replica, and there alone.
inline const auto& watchers_here() { return current_context()->notes->watchers; }

}  // namespace lockstep::detail
