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

using CallbackPtr = std::shared_ptr<Callback>;

struct EarlyStoppingOptions {
  std::string monitor = "val_loss";
  int patience = 0;      ///< epochs without an improvement before the training stops
  double min_delta = 0;  ///< an improvement is larger than this
  bool larger_is_better = false;
  int start_from_epoch = 0;  ///< earlier epochs are ignored
};
/// Stops when a value has not improved for more than `patience` epochs.
LOCKSTEP_EXPORT CallbackPtr early_stopping(const EarlyStoppingOptions& options = {});

/// Sets the learning rate at the beginning of each epoch. To change it with every step, give `fit` a `.schedule`.
LOCKSTEP_EXPORT CallbackPtr learning_rate_scheduler(std::function<double(int epoch, double rate)> rate_of_epoch);

struct ReduceOnPlateauOptions {
  std::string monitor = "val_loss";
  double factor = 0.1;
  int patience = 10;
  double threshold = 1e-4;  ///< an improvement is larger than this, relative to the best
  int cooldown = 0;         ///< epochs after a reduction in which nothing is counted
  double min_rate = 0;      ///< the learning rate is never set lower
  bool larger_is_better = false;
};
/// Multiplies the learning rate by `factor` when a value has stopped improving.
LOCKSTEP_EXPORT CallbackPtr reduce_on_plateau(const ReduceOnPlateauOptions& options = {});

struct TerminateOnNanOptions {
  std::string monitor = "loss";
  int every = 1;  ///< steps between two checks, each of which waits for the device
};
/// Stops after a step that makes the running loss NaN or infinite.
LOCKSTEP_EXPORT CallbackPtr terminate_on_nan(const TerminateOnNanOptions& options = {});

/// A callback made of functions. Functions that are left out do nothing.
struct LambdaOptions {
  std::string name = "lambda";
  std::function<Decision(const Training&)> train_begins = {};
  std::function<Decision(const Training&)> epoch_begins = {};
  /// May return a decision only if `decides_in_batches`.
  std::function<Decision(const Training&)> batch_ends = {};
  std::function<Decision(const Training&, const Logs&)> epoch_ends = {};
  std::function<Decision(const Training&)> train_ends = {};
  std::function<void(const Training&)> save = {};
  bool decides_in_batches = false;
};
LOCKSTEP_EXPORT CallbackPtr lambda(LambdaOptions options);

/// Measures how fast each epoch runs.
class LOCKSTEP_EXPORT Timer final : public Callback {
 public:
  struct Epoch {
    double seconds = 0;
    double rows_per_second = 0;   ///< of all workers; 0 if the number of rows is unknown
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
