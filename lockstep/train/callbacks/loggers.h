#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "lockstep/base/export.h"
#include "lockstep/train/callback.h"

// Callbacks that write the values of a training to files, on the chief only. A training that is resumed cuts its files back to
// the checkpoint it continues from, so that every epoch and every step is in them once.
namespace lockstep::train {

struct CsvLoggerOptions {
  std::string path = "training.csv";
  /// A row after every so many training steps, with this worker's running values; 0: a row for each epoch.
  std::int64_t every_steps = 0;
};
/// Writes a CSV file: the epoch's number, or the step's, and a column for each value and for the learning rate. An old file is
/// replaced unless its training is resumed.
LOCKSTEP_EXPORT std::shared_ptr<Callback> csv_logger(const CsvLoggerOptions& options = {});

struct JsonLinesLoggerOptions {
  std::string path = "training.jsonl";
  std::int64_t every_steps = 0;  ///< as for the CSV file
};
/// Writes the same as a JSON object per line.
LOCKSTEP_EXPORT std::shared_ptr<Callback> json_lines_logger(const JsonLinesLoggerOptions& options = {});

struct TensorBoardOptions {
  std::string folder = "logs";
  /// Also shows this worker's running values after every so many training steps; 0: epochs only.
  std::int64_t every_steps = 0;
};
/// Writes what `tensorboard --logdir FOLDER` shows, in a run per folder:
///
/// | run          | tags                                | counted in     |
/// |--------------|-------------------------------------|----------------|
/// | `train`      | `epoch_loss`, `epoch_learning_rate` | epochs         |
/// | `validation` | `epoch_loss`, without "val_"        | epochs         |
/// | `steps`      | `batch_loss`, `batch_learning_rate` | training steps |
LOCKSTEP_EXPORT std::shared_ptr<Callback> tensor_board(const TensorBoardOptions& options = {});

}  // namespace lockstep::train
