#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "lockstep/base/export.h"
#include "lockstep/train/callback.h"
#include "lockstep/train/logs/event.h"

// Callbacks that write the values of a training to files, on the chief only. A training that is resumed cuts its files back to
// the checkpoint it continues from, so that every epoch and every step is in them once.
namespace lockstep::train {

/// Options of `csv_logger`.
struct CsvLoggerOptions {
  std::string path = "training.csv";  ///< the file
  /// A row after every so many training steps, with this worker's running values; 0: a row for each epoch.
  std::int64_t every_steps = 0;
};
/// Writes a CSV file: the epoch's number, or the step's, and a column for each value and for the learning rate. An old file is
/// replaced unless its training is resumed.
LOCKSTEP_EXPORT std::shared_ptr<Callback> csv_logger(const CsvLoggerOptions& options = {});

/// Options of `json_lines_logger`.
struct JsonLinesLoggerOptions {
  std::string path = "training.jsonl";  ///< the file
  std::int64_t every_steps = 0;         ///< as for the CSV file
};
/// Writes the same as a JSON object per line.
LOCKSTEP_EXPORT std::shared_ptr<Callback> json_lines_logger(const JsonLinesLoggerOptions& options = {});

/// Options of `tensorboard`.
struct TensorBoardOptions {
  std::string folder = "logs";  ///< a run per folder below it
  /// Also shows this worker's running values after every so many training steps; 0: epochs only.
  std::int64_t every_steps = 0;
  /// Histograms of the weights after every so many epochs; 0: none. The chief copies them to its CPU.
  int histograms_every = 0;
  /// The parts of the training whose values are shown in histograms: "optimizer" has what the optimizer remembers.
  std::vector<std::string> histograms_of = {"model"};
  /// Pictures and texts (Markdown) to show after each epoch, by tag. Called on every worker, so it may predict; the chief's are
  /// written. A picture is [height, width] or [channels, height, width], grey, RGB or either with alpha: bytes, or numbers from
  /// 0 to 1.
  std::function<std::map<std::string, at::Tensor>(const Training&)> images = {};
  std::function<std::map<std::string, std::string>(const Training&)> texts = {};  ///< as `images`, but texts
  /// Hyperparameters, for TensorBoard's table of runs: {{"rate", 0.1}, {"layers", 3.0}, {"optimizer", "adam"}}.
  HParams hparams = {};
};
/// Writes what `tensorboard --logdir FOLDER` shows, in a run per folder:
///
/// | run          | tags                                | counted in     |
/// |--------------|-------------------------------------|----------------|
/// | `train`      | `epoch_loss`, `epoch_learning_rate`, `model/fc.weight`, pictures, texts, hyperparameters | epochs |
/// | `validation` | `epoch_loss`, without "val_"        | epochs         |
/// | `steps`      | `batch_loss`, `batch_learning_rate` | training steps |
LOCKSTEP_EXPORT std::shared_ptr<Callback> tensor_board(const TensorBoardOptions& options = {});

}  // namespace lockstep::train
