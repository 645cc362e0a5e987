#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <limits>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "lockstep/base/export.h"
#include "lockstep/nn/schedules.h"
#include "lockstep/train/callback.h"
#include "lockstep/train/schedule.h"

// Callbacks for `fit` and for loops of your own:
//
//     .callbacks = {ls::train::early_stopping({.patience = 5}), ls::train::terminate_on_nan()}
namespace lockstep::train {

using CallbackPtr = std::shared_ptr<Callback>;  ///< as `fit` takes them

/// Options of `early_stopping`.
struct EarlyStoppingOptions {
  std::string monitor = "val_loss";  ///< name of the value to watch
  int patience = 0;                  ///< epochs without an improvement before the training stops
  double min_delta = 0;              ///< an improvement is larger than this
  bool larger_is_better = false;     ///< true for values such as accuracy
  int start_from_epoch = 0;          ///< earlier epochs are ignored
};
/// Stops when a value has not improved for more than `patience` epochs.
LOCKSTEP_EXPORT CallbackPtr early_stopping(const EarlyStoppingOptions& options = {});

/// Sets the learning rate at the beginning of each epoch. To change it with every step, give `fit` a `.schedule`.
LOCKSTEP_EXPORT CallbackPtr learning_rate_scheduler(std::function<double(int epoch, double rate)> rate_of_epoch);

/// Options of `reduce_on_plateau`.
struct ReduceOnPlateauOptions {
  std::string monitor = "val_loss";  ///< name of the value to watch
  double factor = 0.1;               ///< the learning rate is multiplied by this
  int patience = 10;                 ///< epochs without an improvement before a reduction
  double threshold = 1e-4;           ///< an improvement is larger than this, relative to the best
  int cooldown = 0;                  ///< epochs after a reduction in which nothing is counted
  double min_rate = 0;               ///< the learning rate is never set lower
  bool larger_is_better = false;     ///< true for values such as accuracy
};
/// Multiplies the learning rate by `factor` when a value has stopped improving.
LOCKSTEP_EXPORT CallbackPtr reduce_on_plateau(const ReduceOnPlateauOptions& options = {});

/// Options of `terminate_on_nan`.
struct TerminateOnNanOptions {
  std::string monitor = "loss";  ///< name of the value to watch
  int every = 1;                 ///< steps between two checks, each of which waits for the device
};
/// Stops after a step that makes the running loss NaN or infinite.
LOCKSTEP_EXPORT CallbackPtr terminate_on_nan(const TerminateOnNanOptions& options = {});

/// A callback made of functions. Functions that are left out do nothing.
struct LambdaOptions {
  std::string name = "lambda";                                 ///< names its state in checkpoints
  std::function<Decision(const Training&)> train_begins = {};  ///< called before the first epoch
  std::function<Decision(const Training&)> epoch_begins = {};  ///< called before the first step of an epoch
  /// May return a decision only if `decides_in_batches`.
  std::function<Decision(const Training&)> batch_ends = {};
  /// Called after validation, with all values of the epoch.
  std::function<Decision(const Training&, const Logs&)> epoch_ends = {};
  std::function<Decision(const Training&)> train_ends = {};  ///< called after the last epoch
  std::function<void(const Training&)> save = {};            ///< called when a checkpoint is written
  bool decides_in_batches = false;                           ///< whether decisions of `batch_ends` count
};
/// A callback that calls these functions.
LOCKSTEP_EXPORT CallbackPtr lambda(LambdaOptions options);

/// Measures how fast each epoch runs.
class LOCKSTEP_EXPORT Timer final : public Callback {
 public:
  /// The speed of one epoch.
  struct Epoch {
    double seconds = 0;           ///< how long it took
    double rows_per_second = 0;   ///< rows of all workers; 0 if the number of rows is unknown
    double input_wait_share = 0;  ///< share of the time spent waiting for batches
  };

  std::string name() const override { return "timer"; }
  Decision train_begins(const Training& training) override;
  Decision validation_begins(const Training& training) override;
  Decision epoch_begins(const Training& training) override;
  Decision epoch_ends(const Training& training, const Logs& logs) override;
  std::string to_text() const override;
  void from_text(const std::string& text) override;
  /// The epochs of the last training, without their validation. After a resume they include those before it.
  const std::vector<Epoch>& epochs() const { return epochs_; }

 private:
  void take(const Training& training);

  bool is_taken_ = false;
  std::vector<Epoch> epochs_;
};

}  // namespace lockstep::train
