#include <gtest/gtest.h>
#include <signal.h>

#include <atomic>
#include <string>

#include "tests/support/expect_error.h"
#include "tests/support/lives.h"

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
