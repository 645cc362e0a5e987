#pragma once

#include <gtest/gtest.h>

#include <cstdint>
#include <memory>
#include <stdexcept>
#include <string>
#include <vector>

#include "lockstep/train/callbacks/checkpoints.h"
#include "lockstep/train/callbacks/loggers.h"
#include "tests/support/fit_support.h"
#include "tests/support/same_bits.h"
#include "tests/support/temporary_folder.h"

// Trainings that are killed and resumed: each life uses new objects over the same folder.
namespace lockstep {

inline constexpr int kEpochs = 3, kStepsOfAnEpoch = 6;

struct Killed : std::runtime_error {
  Killed() : std::runtime_error("killed") {}
};

/// Where a training ends with an exception, as if it were killed there: after a step, or at a moment of an epoch.
struct Kill {
  std::int64_t after_step = -1;
  int validation_begins = -1, validation_ends = -1, epoch_ends = -1;
};
struct KillAt : train::Callback {
  explicit KillAt(const Kill& kill) : at(kill) {}
  std::string name() const override { return "kill_at"; }
  static train::Decision killed(bool is_here) {
    if (is_here) throw Killed();
    return {};
  }
  train::Decision batch_ends(const train::Training& t) override { return killed(t.step == at.after_step); }
  train::Decision validation_begins(const train::Training& t) override {
    return killed(t.epoch == at.validation_begins);
  }
  train::Decision validation_ends(const train::Training& t, const train::Logs&) override {
    return killed(t.epoch == at.validation_ends);
  }
  train::Decision epoch_ends(const train::Training& t, const train::Logs&) override {
    return killed(t.epoch == at.epoch_ends);
  }
  Kill at;
};

/// Requests a checkpoint at the moments of a mask, from which a training must be able to continue.
struct SaveIn : train::Callback {
  enum Moment { kBegin = 1, kEpoch = 2, kBatch = 4, kValidation = 8, kValidated = 16, kEpochEnd = 32, kEnd = 64 };
  explicit SaveIn(int given) : moments(given) {}
  std::string name() const override { return "save_in"; }
  bool decides_in_batches() const override { return true; }
  train::Decision save_in(Moment moment) const { return {.save = (moments & moment) != 0}; }
  train::Decision train_begins(const train::Training&) override { return save_in(kBegin); }
  train::Decision epoch_begins(const train::Training&) override { return save_in(kEpoch); }
  train::Decision batch_ends(const train::Training&) override { return save_in(kBatch); }
  train::Decision validation_begins(const train::Training&) override { return save_in(kValidation); }
  train::Decision validation_ends(const train::Training&, const train::Logs&) override { return save_in(kValidated); }
  train::Decision epoch_ends(const train::Training&, const train::Logs&) override { return save_in(kEpochEnd); }
  train::Decision train_ends(const train::Training&) override { return save_in(kEnd); }
  int moments;
};

/// The result of a training, which must be the same whether it was killed or not.
struct Outcome {
  std::vector<at::Tensor> weights;
  train::History history;
  std::int64_t steps = 0;
  double rate = 0;
  std::string csv;
};

/// One life of a training, with new objects.
class Life {
 public:
  Life(int replicas, const TemporaryFolder& folder) : folder_(folder), training_(replicas) {}

  train::FitOptions<Batch> options(int save_in, const Kill& kill = {}) const {
    return {.epochs = kEpochs,
            .validation = data::from_tensor_slices(known_rows(17)).shuffle(17).batch(4),
            .callbacks = {train::csv_logger({.path = folder_ / "log.csv"}),
                          train::reduce_on_plateau({.monitor = "val_loss", .factor = 0.5, .patience = 0}),
                          std::make_shared<SaveIn>(save_in),
                          train::model_checkpoint({.folder = folder_ / "checkpoints", .every_epochs = 0}),
                          std::make_shared<KillAt>(kill)},
            .resume = true};
  }
  Outcome fit(const train::FitOptions<Batch>& options) {
    Outcome outcome{.history = training_.fit(known_batches(), options)};
    outcome.weights = training_.weights();
    outcome.steps = training_.optimizer.steps();
    outcome.rate = training_.optimizer.learning_rate();
    outcome.csv = file_content(folder_ / "log.csv");
    return outcome;
  }
  Training& training() { return training_; }

 private:
  const TemporaryFolder& folder_;
  Training training_;
};

inline void expect_same(const Outcome& seen, const Outcome& expected, const std::string& what) {
  EXPECT_EQ(first_difference(seen.weights, expected.weights), "") << what;
  EXPECT_EQ(seen.history.epochs, expected.history.epochs) << what;
  EXPECT_EQ(seen.history.stopped, expected.history.stopped) << what;
  EXPECT_EQ(seen.steps, expected.steps) << what;
  EXPECT_EQ(seen.rate, expected.rate) << what;
  EXPECT_EQ(seen.csv, expected.csv) << what;
}

inline Outcome uninterrupted(int replicas) {
  const TemporaryFolder folder;
  Life life(replicas, folder);
  return life.fit(life.options(0));
}

}  // namespace lockstep
