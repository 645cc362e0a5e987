#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <future>
#include <map>
#include <optional>
#include <string>
#include <vector>

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
  /// The parts of a snapshot that `keep.keep_optimizer` is about.
  std::vector<std::string> optimizer_parts = {"optimizer"};
  /// Write on a thread of its own, while training continues.
  bool background = true;
  /// A checkpoint that is to be saved while the one before is still being written is left out, with a line in the log. Otherwise
  /// `save` waits.
  bool leave_out_when_busy = false;
  /// With several workers: each writes its own part, so that no worker's disk or memory holds all of it at once. All of them must
  /// see the same folder. Tensors are not cut.
  bool sharded = false;
  double shard_timeout = 600;  ///< seconds that the chief, having written its part, waits for those of the others
};

/// Writes the checkpoints of a training to a folder and removes those that need not stay. One process of a training has one;
/// a second one on the same folder is an error.
///
///     CheckpointManager checkpoints("run/checkpoints", {.keep = {.keep = 3, .best_metric = "val_loss"}});
///     if (auto newest = checkpoints.resume()) ls::restore(strategy, read_checkpoint(newest->path), parts);
///     ...
///     checkpoints.save(step, ls::capture(strategy, parts), {{"val_loss", loss}});
///
/// With several workers the chief has it, and saves a snapshot that was gathered. With `.sharded` every worker has one of its own,
/// and all make the same calls; what `capture` returned is saved as it is:
///
///     CheckpointManager checkpoints(strategy, "run/checkpoints", {.sharded = true});
///     checkpoints.save(step, ls::capture(strategy, parts));
///
/// Not for several threads at once.
class LOCKSTEP_EXPORT CheckpointManager {
 public:
  /// Makes the folder. FailedPrecondition if another manager, of whichever process, has it.
  explicit CheckpointManager(std::string folder, CheckpointOptions options = {});
  /// For sharded checkpoints: the strategy whose workers write them, which must outlive it.
  CheckpointManager(Strategy& strategy, std::string folder, CheckpointOptions options);
  /// Waits for the last checkpoint, but for other workers' parts only a few seconds if an exception destroys it. An error is
  /// logged.
  ~CheckpointManager();
  CheckpointManager(const CheckpointManager&) = delete;
  CheckpointManager& operator=(const CheckpointManager&) = delete;

  /// The newest checkpoint that can be resumed. From then on, `save` also removes checkpoints of later steps: they are damaged,
  /// or of a training that is no longer continued.
  std::optional<CheckpointEntry> resume();

  /// Takes the snapshot and writes it. Throws what writing an earlier one has failed with. False if this one was left out.
  /// FailedPrecondition if the folder has checkpoints of later steps, unless they were passed over by `resume`.
  bool save(std::int64_t step, Snapshot snapshot, std::map<std::string, double> metrics = {});

  /// Returns when all is on the disk. Throws if that has failed.
  void wait();
  bool is_busy() const;

  /// Where the checkpoints are.
  const std::string& folder() const { return folder_; }
  std::int64_t left_out() const { return left_out_; }  ///< checkpoints that `leave_out_when_busy` cost
  /// How long `save` has waited for the checkpoint before.
  double waited_seconds() const { return waited_seconds_; }

  /// Throws on all workers unless all see the folder. A collective; for sharded checkpoints.
  void require_shared_folder();

 private:
  bool leaves_out(std::int64_t step);
  void wait_to_save();
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
