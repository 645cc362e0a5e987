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
  std::vector<NamedState> parts = {};  ///< all state that there is to save, callbacks included

  int epoch = 0;                             ///< from 0
  int epochs = 1;                            ///< the training ends before this one
  std::int64_t step = 0;                     ///< training steps taken in all epochs
  std::int64_t batch = 0;                    ///< training steps taken in this epoch
  std::optional<std::int64_t> batches = {};  ///< steps of an epoch, if known beforehand

  bool is_resumed = false;  ///< it continues from a checkpoint

  double learning_rate = 0;       ///< of this step: of the first optimizer's first group; 0 without an optimizer
  std::int64_t rows = 0;          ///< examples of all workers in this epoch so far; 0 where unknown
  double seconds = 0;             ///< since the training began, on this worker
  double epoch_seconds = 0;       ///< since this epoch began
  double input_wait_seconds = 0;  ///< share of `epoch_seconds` spent waiting for batches

  /// Updates of the weights that the first optimizer has made, which waits for a GPU if it skips steps; `step` without an optimizer.
  std::function<std::int64_t()> updates = {};
  /// The values of this epoch so far, of this worker's replicas only. Waits for the device; read at most once per step, however
  /// many callbacks ask.
  std::function<const Logs&()> running_logs = {};
};

/// Follows a training and takes part in its decisions. All workers call their callbacks at the same moments, in the order in
/// which they were given, so a callback may make collectives. Files are written by `training.strategy.is_chief()` alone.
///
/// | moment             | called                                                                                 |
/// |--------------------|----------------------------------------------------------------------------------------|
/// | `train_begins`     | once, before the first epoch                                                           |
/// | `epoch_begins`     | before the first step of an epoch                                                      |
/// | `batch_ends`       | after every training step                                                              |
/// | `validation_begins`| before the validation of an epoch                                                      |
/// | `validation_ends`  | after the validation of an epoch, with its values as "val_..."                         |
/// | `epoch_ends`       | after validation, with all values of the epoch                                         |
/// | `save`             | when a callback of any worker decided to save, after the moment in which it did        |
/// | `train_ends`       | once, after the last epoch; not if the training failed                                 |
///
/// Each moment returns a decision; `{}` means go on. If a callback throws on one worker, the training ends on all of them.
class LOCKSTEP_EXPORT Callback {
 public:
  virtual ~Callback() = default;
  /// The key of its state among those of the training; two callbacks of one training need different names.
  virtual std::string name() const = 0;

  virtual Decision train_begins(const Training&) { return {}; }
  virtual Decision epoch_begins(const Training&) { return {}; }
  virtual Decision batch_ends(const Training&) { return {}; }
  virtual Decision validation_begins(const Training&) { return {}; }
  virtual Decision validation_ends(const Training&, const Logs&) { return {}; }
  virtual Decision epoch_ends(const Training&, const Logs&) { return {}; }
  virtual void save(const Training&) {}
  virtual Decision train_ends(const Training&) { return {}; }

  /// Whether decisions of `batch_ends` are looked at. Workers then exchange a few bytes after every step, so leave it false
  /// unless a decision cannot wait for the end of the epoch. `batch_ends` of the others must return nothing.
  virtual bool decides_in_batches() const { return false; }

  /// What it remembers from one moment to the next, to save and to continue from. `from_text` comes before `train_begins`, on
  /// every worker with the chief's text.
  virtual std::string to_text() const { return {}; }
  virtual void from_text(const std::string&) {}
  /// What it remembers beyond a text, such as tensors: restored after `from_text`, if the checkpoint has both. Null: nothing.
  virtual Stateful* state() { return nullptr; }
};

}  // namespace lockstep::train
