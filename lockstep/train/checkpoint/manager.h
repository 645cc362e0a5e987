#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <future>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "lockstep/base/deadline.h"
#include "lockstep/base/export.h"
#include "lockstep/strategy/snapshot.h"
#include "lockstep/train/checkpoint/checkpoint.h"
#include "lockstep/train/checkpoint/folder_lock.h"
#include "lockstep/train/checkpoint/keeping.h"
#include "lockstep/train/checkpoint/unwinding.h"

namespace lockstep::train {

/// Options of a CheckpointManager.
struct CheckpointOptions {
  KeepOptions keep = {};  ///< which checkpoints stay
  /// The parts of a snapshot that `keep.keep_optimizer` removes.
  std::vector<std::string> optimizer_parts = {"optimizer"};
  /// Writes on a background thread while training continues.
  bool background = true;
  /// Leaves out a checkpoint, with a line in the log, if the previous one is still being written. By default `save` waits.
  bool leave_out_when_busy = false;
  /// Each worker writes a part, so that the chief need not hold or write everything. All workers must see the same folder. Single
  /// tensors are not split.
  bool sharded = false;
  /// How many seconds the chief waits for the parts of the other workers after it has written its own. Meanwhile they wait for it in
  /// the next `save` or `wait`, longer than the strategy's limit for collectives if need be.
  double shard_timeout = 600;
};

/// Writes the checkpoints of a training to a folder and removes old ones. A second manager of the same folder, in this or another
/// process, is an error.
///
///     CheckpointManager checkpoints("run/checkpoints", {.keep = {.keep = 3, .best_metric = "val_loss"}});
///     if (auto newest = checkpoints.resume()) ls::restore(strategy, read_checkpoint(newest->path), parts);
///     ...
///     checkpoints.save(step, ls::capture(strategy, parts), {{"val_loss", loss}});
///
/// With several workers, make it on the chief only, and save what `ls::gather` returns. With `.sharded`, make it on every worker, make
/// the same calls on all, and save what `ls::capture` returns:
///
///     CheckpointManager checkpoints(strategy, "run/checkpoints", {.sharded = true});
///     checkpoints.save(step, ls::capture(strategy, parts));
///
/// Not thread-safe.
class LOCKSTEP_EXPORT CheckpointManager {
 public:
  /// Creates the folder if needed. FailedPrecondition if another manager has it.
  explicit CheckpointManager(std::string folder, CheckpointOptions options = {});
  /// For sharded checkpoints: the strategy whose workers write them, which must outlive it.
  CheckpointManager(Strategy& strategy, std::string folder, CheckpointOptions options);
  /// Waits for the last checkpoint; if an exception destroys the manager, only a few seconds for other workers' parts. Errors are
  /// logged.
  ~CheckpointManager();
  CheckpointManager(const CheckpointManager&) = delete;
  CheckpointManager& operator=(const CheckpointManager&) = delete;

  /// The newest checkpoint that can be resumed, if there is one; with `.sharded` all workers get the one that the chief found. The
  /// next `save` removes checkpoints of later steps: they are damaged, or belong to a training that is not continued.
  std::optional<CheckpointEntry> resume();
  /// The same on this worker only.
  std::optional<CheckpointEntry> resume_here();

  /// Writes the snapshot. Returns false if it was left out (`leave_out_when_busy`). Throws the error of an earlier checkpoint that could
  /// not be written in the background, and FailedPrecondition if the folder has checkpoints of later steps, unless `resume` was called.
  bool save(std::int64_t step, Snapshot snapshot, std::map<std::string, double> metrics = {});

  /// Returns when the last checkpoint is on the disk, with all workers' parts. Throws if it could not be written.
  void wait();
  bool is_busy() const;

  /// Where the checkpoints are.
  const std::string& folder() const { return folder_; }
  std::int64_t left_out() const { return left_out_; }  ///< checkpoints left out because of `leave_out_when_busy`
  /// How long `save` has waited for previous checkpoints, in all.
  double waited_seconds() const { return waited_seconds_; }

  /// For sharded checkpoints: throws on all workers unless all see the same folder. A collective.
  void require_shared_folder();

 private:
  bool leaves_out(std::int64_t step);
  void wait_here();
  void wait_to_save();
  Deadline limit_of_chief() const;
  void require_no_later_steps(std::int64_t step);
  bool save_share(std::int64_t step, Snapshot captured, const std::map<std::string, double>& metrics);
  void write_share(detail::CheckpointWriter& unfinished, const Snapshot& share, const CheckpointInfo& info) const;
  bool is_one_of_several() const;
  void start(std::function<void()> write);
  void write(std::int64_t step, const Snapshot& snapshot, const std::map<std::string, double>& metrics) const;
  void tidy_up(std::int64_t newest_step) const;

  std::string folder_;
  CheckpointOptions options_;
  Strategy* strategy_ = nullptr;            ///< of sharded checkpoints
  std::optional<detail::FolderLock> lock_;  ///< of the chief
  detail::Unwinding exception_;
  std::atomic<bool> is_abandoned_ = false;  ///< by an exception: other workers may have failed, too
  std::future<void> writing_;
  bool resumed_ = false;
  std::optional<std::int64_t> last_step_;
  std::int64_t left_out_ = 0;
  double waited_seconds_ = 0;
};

}  // namespace lockstep::train
