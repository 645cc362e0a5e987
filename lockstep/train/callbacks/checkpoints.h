#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "lockstep/base/export.h"
#include "lockstep/train/callback.h"
#include "lockstep/train/checkpoint/manager.h"

// Callbacks that write the whole state of a training, from which `.resume` continues with the same bits: weights, optimizer, random
// numbers, position in the data, metrics, history and what callbacks remember.
namespace lockstep::train {

/// Options of `model_checkpoint`.
struct ModelCheckpointOptions {
  std::string folder = "checkpoints";  ///< where checkpoints go
  int every_epochs = 1;                ///< at the ends of epochs; 0: not there
  /// Also after so many training steps or so much time on the chief. Workers then exchange a few bytes after every step.
  SaveInterval every = {};
  /// Which ones stay: `.checkpoints = {.keep = {.keep = 3, .best_metric = "val_loss"}}` keeps the newest three and the best.
  CheckpointOptions checkpoints = {};
  /// At the ends of epochs saves only if `keep.best_metric` is better than ever before.
  bool only_best = false;
};
/// Writes a checkpoint whenever one is due, and when another callback returns {.save = true}.
///
///     .callbacks = {ls::train::model_checkpoint({.folder = "run/checkpoints", .every = {.steps = 1000}})}, .resume = true
LOCKSTEP_EXPORT std::shared_ptr<Callback> model_checkpoint(const ModelCheckpointOptions& options = {});

/// Options of `backup_and_restore`.
struct BackupAndRestoreOptions {
  std::string folder = "backup";  ///< where the two checkpoints go
  int every_epochs = 1;           ///< at the ends of epochs; 0: not there
  SaveInterval every = {};        ///< also after so many training steps or so much time on the chief
  bool delete_checkpoint = true;  ///< when the training has ended
};
/// Makes a training that is started again continue where it was, without `.resume`. Keeps two checkpoints, so that there is
/// another if one is damaged.
LOCKSTEP_EXPORT std::shared_ptr<Callback> backup_and_restore(const BackupAndRestoreOptions& options = {});

}  // namespace lockstep::train
