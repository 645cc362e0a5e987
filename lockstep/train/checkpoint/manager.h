#pragma once

#include <cstdint>
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

namespace lockstep::train {

struct CheckpointOptions {
  KeepOptions keep = {};
  /// The parts of a snapshot that `keep.keep_optimizer` is about.
  std::vector<std::string> optimizer_parts = {"optimizer"};
  /// Write on a thread of its own, while training continues.
  bool background = true;
  /// A checkpoint that is to be saved while the one before is still being written is left out, with a line in the log. Otherwise
  /// `save` waits.
  bool leave_out_when_busy = false;
};

/// Writes the checkpoints of a training to a folder and removes those that need not stay. One process of a training has one;
/// a second one on the same folder is an error.
///
///     CheckpointManager checkpoints("run/checkpoints", {.keep = {.keep = 3, .best_metric = "val_loss"}});
///     if (auto newest = checkpoints.resume()) ls::restore(strategy, read_checkpoint(newest->path), parts);
///     ...
///     checkpoints.save(step, ls::capture(strategy, parts), {{"val_loss", loss}});
///
/// Not for several threads at once.
class LOCKSTEP_EXPORT CheckpointManager {
 public:
  /// Makes the folder. FailedPrecondition if another manager, of whichever process, has it.
  explicit CheckpointManager(std::string folder, CheckpointOptions options = {});
  /// Waits for the last checkpoint. An error is logged.
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

  const std::string& folder() const { return folder_; }
  std::int64_t left_out() const { return left_out_; }  ///< checkpoints that `leave_out_when_busy` cost

 private:
  void require_no_later_steps(std::int64_t step);
  void write(std::int64_t step, const Snapshot& snapshot, const std::map<std::string, double>& metrics) const;
  void tidy_up(std::int64_t newest_step) const;

  std::string folder_;
  CheckpointOptions options_;
  detail::FolderLock lock_;
  std::future<void> writing_;
  bool resumed_ = false;
  std::optional<std::int64_t> last_step_;
  std::int64_t left_out_ = 0;
};

}  // namespace lockstep::train
