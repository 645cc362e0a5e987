#pragma once

#include <c10/util/SmallVector.h>

#include <cstdint>
#include <memory>
#include <span>

#include "lockstep/base/export.h"
#include "lockstep/values/per_replica.h"

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

/// The rows of the batch that was given to `run`.
struct StepRows {
  c10::SmallVector<std::int64_t, 16> here = {};  ///< of each local replica; empty where no batch was given
  /// Of all workers together; -1: unknown, or some replica has none. The same on all workers.
  std::int64_t all = -1;
  BatchPlace place = {};
};

/// What belongs to one replica's part of one run and to no other.
struct RunNotes {
  const StepRows& rows;
  std::span<const std::shared_ptr<const RunWatcher>> watchers = {};
  std::int64_t average_losses = 0;  ///< calls of average_loss without a size
  std::int64_t noted_losses = 0;    ///< calls of note_loss
  int losses_of_batch = 0;          ///< given to optimizers, in windows of several calls
  std::int64_t loss_size = 0;       ///< the last one given to average_loss with the rows of the batch; 0: none
  double loss_scale = 0;  ///< of the last backward of a loss that a GradScaler has multiplied; 0: there was none
  bool has_several_scales = false;

  void note_scale(double scale) {
    has_several_scales |= loss_scale != 0 && loss_scale != scale;
    loss_scale = scale;
  }
};

/// For what Lockstep itself changes inside run, or lets the user change once: check before, remember after. On every
/// replica; nothing outside of replicas.
LOCKSTEP_EXPORT void require_watched_untouched();
LOCKSTEP_EXPORT void remember_watched();

}  // namespace lockstep::detail
