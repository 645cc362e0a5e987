#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "lockstep/base/export.h"
#include "lockstep/strategy/snapshot.h"
#include "lockstep/train/decision.h"

namespace lockstep::train {

/// Values by name: "loss", "accuracy", "val_loss". The same on every worker, except where stated.
using Logs = std::map<std::string, double>;

/// Where a training is, as callbacks see it.
struct Training {
  Strategy& strategy;                  ///< the strategy that trains
  std::vector<NamedState> parts = {};  ///< the state that checkpoints save, callbacks included

  int epoch = 0;                             ///< number of this epoch, from 0
  int epochs = 1;                            ///< the number after that of the last epoch
  std::int64_t step = 0;                     ///< training steps taken in all epochs
  std::int64_t batch = 0;                    ///< training steps taken in this epoch
  std::optional<std::int64_t> batches = {};  ///< steps of an epoch, if known beforehand

  bool is_resumed = false;  ///< whether it was continued from a checkpoint

  double learning_rate = 0;       ///< of the first group of the first optimizer in this step; 0 without an optimizer
  std::int64_t rows = 0;          ///< examples of all workers in this epoch so far; 0 if unknown
  double seconds = 0;             ///< since the training began, on this worker
  double epoch_seconds = 0;       ///< since this epoch began
  double input_wait_seconds = 0;  ///< the part of `epoch_seconds` spent waiting for batches

  /// Number of updates that the first optimizer has made; `step` without an optimizer. Waits for the GPU if a GradScaler may skip
  /// updates.
  std::function<std::int64_t()> updates = {};
  /// The values of this epoch so far, of this worker's replicas only. Waits for the device, but only once per step, however many
  /// callbacks call it.
  std::function<const Logs&()> running_logs = {};
};

/// Is called at moments of a training and decides whether it stops, saves or changes its learning rate. All workers call their
/// callbacks at the same moments, in the order in which they were given, so a callback may use collectives. Write files only if
/// `training.strategy.is_chief()`.
///
/// | moment             | called                                                                                 |
/// |--------------------|----------------------------------------------------------------------------------------|
/// | `train_begins`     | once, before the first epoch                                                           |
/// | `epoch_begins`     | before the first step of an epoch                                                      |
/// | `batch_ends`       | after every training step                                                              |
/// | `validation_begins`| before the validation of an epoch                                                      |
/// | `validation_ends`  | after the validation of an epoch, with its values as "val_..."                         |
/// | `epoch_ends`       | after validation, with all values of the epoch                                         |
/// | `save`             | after a moment in which a callback on any worker decided to save                       |
/// | `train_ends`       | once, after the last epoch; not if the training failed                                 |
///
/// Each moment returns a decision; `{}` means continue. If a callback throws on one worker, the training ends on all of them.
class LOCKSTEP_EXPORT Callback {
 public:
  virtual ~Callback() = default;
  /// The key of its state in checkpoints. Callbacks of one training need different names.
  virtual std::string name() const = 0;

  virtual Decision train_begins(const Training&) { return {}; }
  virtual Decision epoch_begins(const Training&) { return {}; }
  virtual Decision batch_ends(const Training&) { return {}; }
  virtual Decision validation_begins(const Training&) { return {}; }
  virtual Decision validation_ends(const Training&, const Logs&) { return {}; }
  virtual Decision epoch_ends(const Training&, const Logs&) { return {}; }
  virtual void save(const Training&) {}
  virtual Decision train_ends(const Training&) { return {}; }

  /// Whether `batch_ends` makes decisions. Workers then exchange a few bytes after every step, so return true only if a decision
  /// cannot wait for the end of the epoch. Otherwise `batch_ends` must return `{}`.
  virtual bool decides_in_batches() const { return false; }

  /// State to save in checkpoints, and to continue from. `from_text` is called before `train_begins`, on every worker with the
  /// chief's text.
  virtual std::string to_text() const { return {}; }
  virtual void from_text(const std::string&) {}
  /// State that is not text, such as tensors; null if there is none. It is restored after `from_text`.
  virtual Stateful* state() { return nullptr; }
};

}  // namespace lockstep::train
