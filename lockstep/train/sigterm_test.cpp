#include <gtest/gtest.h>
#include <signal.h>

#include <atomic>
#include <chrono>
#include <cstdint>
#include <functional>
#include <string>
#include <thread>

#include "tests/support/expect_error.h"
#include "tests/support/lives.h"
#include "tests/support/logged_lines.h"

namespace lockstep {
namespace {

/// Sends SIGTERM to this process in a moment of a training.
struct RaiseAt : train::Callback {
  explicit RaiseAt(std::string moment) : at(std::move(moment)) {}
  std::string name() const override { return "raise_at"; }
  train::Decision raise_in(const std::string& moment) const {
    if (moment == at) ::raise(SIGTERM);
    return {};
  }
  train::Decision train_begins(const train::Training&) override { return raise_in("begin"); }
  train::Decision epoch_begins(const train::Training& t) override { return raise_in(str("epoch ", t.epoch)); }
  train::Decision batch_ends(const train::Training& t) override { return raise_in(str("step ", t.step)); }
  train::Decision validation_begins(const train::Training& t) override { return raise_in(str("validation ", t.epoch)); }
  train::Decision epoch_ends(const train::Training& t, const train::Logs&) override {
    return raise_in(str("epoch end ", t.epoch));
  }
  std::string at;
};

/// Rows of validation, of which reading the batch number `raise_at`, counted from 1 over all epochs, sends SIGTERM.
data::Dataset<Batch> validation_rows(int raise_at = -1) {
  auto count = std::make_shared<std::atomic<int>>(0);
  return known_batches(17, 4).map([=](const Batch& batch) {
    if (++*count == raise_at) ::raise(SIGTERM);
    return batch;
  });
}

train::FitOptions<Batch> options_of(const Life& life, const data::Dataset<Batch>& validation, const std::string& moment,
                                    int* ends) {
  auto options = life.options(0);
  options.validation = validation;
  options.callbacks.push_back(std::make_shared<RaiseAt>(moment));
  options.on_sigterm = [ends] { ++*ends; };
  return options;
}

TEST(Sigterm, SavesAtThatMomentAndTheTrainingContinuesThere) {
  const struct {
    std::string moment;
    int validation_batch;  ///< in place of a moment
    std::int64_t step;     ///< after which it is saved
  } cases[] = {
      {"begin", -1, 0},         {"epoch 0", -1, 0},      {"step 1", -1, 1},   {"step 8", -1, 8}, {"step 6", -1, 6},
      {"validation 1", -1, 12}, {"epoch end 1", -1, 12}, {"step 18", -1, 18}, {"", 3, 6},        {"", 7, 12},
  };
  int ends = 0;
  Outcome expected;
  {
    const TemporaryFolder folder;
    Life life(2, folder);
    expected = life.fit(options_of(life, validation_rows(), "", &ends));
    ASSERT_EQ(ends, 0);
  }
  for (const auto& each : cases) {
    const std::string what = str(each.moment, " or batch ", each.validation_batch);
    const TemporaryFolder folder;
    ends = 0;
    {
      Life life(2, folder);
      life.fit(options_of(life, validation_rows(each.validation_batch), each.moment, &ends));
      EXPECT_EQ(ends, 1) << what;
      EXPECT_EQ(life.training().optimizer.steps(), each.step) << what;
    }
    const auto all = train::list_checkpoints(folder / "checkpoints");
    ASSERT_EQ(all.size(), 1u) << what;
    EXPECT_EQ(all[0].step, each.step) << what;
    Life life(2, folder);
    expect_same(life.fit(options_of(life, validation_rows(), "", &ends)), expected, what);
    EXPECT_EQ(ends, 1) << what;
  }
}

TEST(Sigterm, WaitsForTheEndOfAWindow) {
  const TemporaryFolder folder, other;
  int ends = 0;
  const auto fit = [&](const TemporaryFolder& where, const std::string& moment) {
    Life life(2, where);
    Training& its = life.training();
    its.optimizer.set_accumulate(4);
    its.model.set_train_step([&its](const Batch& mine) {
      const at::Tensor losses = loss_per_row(its.net->forward(mine.rows), mine.labels);
      its.optimizer.minimize(average_loss(losses, /*global_batch=*/40));
      return train::StepLogs{{"loss", losses.detach()}};
    });
    return life.fit(options_of(life, validation_rows(), moment, &ends));
  };
  const Outcome expected = fit(other, "");
  fit(folder, "step 5");
  EXPECT_EQ(ends, 1);
  EXPECT_EQ(train::list_checkpoints(folder / "checkpoints").at(0).step, 8);
  const Outcome resumed = fit(folder, "");
  EXPECT_EQ(first_difference(resumed.weights, expected.weights), "");
  for (const char* name : {"loss", "val_loss"}) EXPECT_EQ(resumed.history.of(name), expected.history.of(name)) << name;
}

TEST(Sigterm, ActsWhileTheTrainingWaitsForABatch) {
  const TemporaryFolder folder, other;
  int ends = 0;
  Outcome expected;
  {
    Life life(2, other);
    expected = life.fit(options_of(life, validation_rows(), "", &ends));
  }
  // Reading the ninth batch takes until the training has ended.
  std::atomic<int> read{0};
  std::atomic<std::int64_t> steps{0};
  std::atomic<bool> has_ended{false};
  const auto pause_until = [&](const std::function<bool()>& is_over) {
    for (int k = 0; k < 2000 && !is_over(); ++k) std::this_thread::sleep_for(std::chrono::milliseconds(10));
  };
  const auto batches = known_batches().map([&](const Batch& batch) {
    if (++read == 9) {
      pause_until([&] { return steps == 8; });
      std::this_thread::sleep_for(std::chrono::milliseconds(300));  // the training waits by now
      ::raise(SIGTERM);
      pause_until([&] { return has_ended.load(); });
    }
    return batch;
  });
  {
    Life life(2, folder);
    auto options = options_of(life, validation_rows(), "", &ends);
    options.on_sigterm = [&] { has_ended = true; };
    options.callbacks.push_back(train::lambda({.batch_ends = [&](const train::Training& t) {
      steps = t.step;
      return train::Decision{};
    }}));
    options.verbose = train::Verbose::Silent;
    life.training().model.fit(batches, options);
    EXPECT_TRUE(has_ended);
    EXPECT_EQ(life.training().optimizer.steps(), 8);
  }
  EXPECT_EQ(train::list_checkpoints(folder / "checkpoints").at(0).step, 8);
  read = 100;
  Life life(2, folder);
  auto options = options_of(life, validation_rows(), "", &ends);
  options.verbose = train::Verbose::Silent;
  const train::History history = life.training().model.fit(batches, options);
  EXPECT_EQ(history.epochs, expected.history.epochs);
  EXPECT_EQ(first_difference(life.training().weights(), expected.weights), "");
}

TEST(Sigterm, SavesThoughTheCheckpointBeforeIsStillBeingWritten) {
  for (int round = 0; round < 3; ++round) {
    const TemporaryFolder folder;
    int ends = 0;
    Life life(1, folder);
    auto options = options_of(life, validation_rows(), "step 8", &ends);
    options.callbacks.push_back(train::model_checkpoint(
        {.folder = folder / "busy", .every = {.steps = 1}, .checkpoints = {.leave_out_when_busy = true}}));
    const LogSilence silence;  // of those that are left out
    life.fit(options);
    EXPECT_EQ(ends, 1);
    EXPECT_EQ(train::list_checkpoints(folder / "busy").back().step, 8);
  }
}

TEST(Sigterm, IsLeftToTheProgramWithoutCheckpoints) {
  static std::atomic<int> calls{0};
  calls = 0;
  struct sigaction mine {
  }, before{};
  mine.sa_handler = [](int) { ++calls; };
  ::sigaction(SIGTERM, &mine, &before);
  Training t(1);
  t.fit(known_batches(), {.epochs = 1, .callbacks = {std::make_shared<RaiseAt>("step 2")}});
  EXPECT_EQ(calls, 1);
  EXPECT_EQ(t.optimizer.steps(), 6);
  ::sigaction(SIGTERM, &before, nullptr);
}

}  // namespace
}  // namespace lockstep
