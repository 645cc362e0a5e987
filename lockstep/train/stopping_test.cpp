#include "lockstep/train/callbacks.h"

#include <gtest/gtest.h>

#include <cmath>
#include <sstream>
#include <stdexcept>
#include <string>
#include <vector>

#include "lockstep/train/agreement.h"
#include "tests/support/expect_error.h"
#include "tests/support/fit_support.h"
#include "tests/support/same_bits.h"

namespace lockstep {
namespace {

/// What a callback decides at the ends of epochs with these values.
std::vector<train::Decision> decisions(Strategy& strategy, train::Callback& callback,
                                       const std::vector<double>& values) {
  train::Training training{.strategy = strategy, .learning_rate = 1.0};
  std::vector<train::Decision> made;
  for (const double value : values) {
    made.push_back(callback.epoch_ends(training, {{"val_loss", value}}));
    if (made.back().learning_rate) training.learning_rate = *made.back().learning_rate;
    ++training.epoch;
  }
  return made;
}

/// The epoch in which it stops; -1 if it does not.
int stops_at(train::EarlyStoppingOptions options, const std::vector<double>& values) {
  MirroredStrategy strategy(on_cpus(1));
  const auto made = decisions(strategy, *train::early_stopping(options), values);
  for (std::size_t k = 0; k < made.size(); ++k) {
    if (made[k].stop) return static_cast<int>(k);
  }
  return -1;
}

TEST(EarlyStopping, WaitsForAnImprovement) {
  const double nan = std::nan("");
  EXPECT_EQ(stops_at({}, {3, 2, 1}), -1);
  EXPECT_EQ(stops_at({}, {3, 2, 2, 1}), 2);
  EXPECT_EQ(stops_at({.patience = 2}, {3, 4, 4, 2, 4, 4, 4}), 6);
  EXPECT_EQ(stops_at({.min_delta = 0.5}, {3, 2.6}), 1);
  EXPECT_EQ(stops_at({.min_delta = 0.5}, {3, 2.4}), -1);
  EXPECT_EQ(stops_at({.larger_is_better = true}, {1, 2, 3}), -1);
  EXPECT_EQ(stops_at({.larger_is_better = true}, {1, 1}), 1);
  EXPECT_EQ(stops_at({.start_from_epoch = 3}, {1, 5, 5, 4, 3}), -1);
  EXPECT_EQ(stops_at({.patience = 1}, {nan, nan, nan}), 2);
  EXPECT_EQ(stops_at({.patience = 1}, {nan, 5, nan, 4, nan, nan}), 5);
}

TEST(EarlyStopping, ContinuesFromItsText) {
  MirroredStrategy strategy(on_cpus(1));
  const auto before = train::early_stopping({.patience = 1});
  decisions(strategy, *before, {0.1, 0.3});
  const auto after = train::early_stopping({.patience = 1});
  after->from_text(before->to_text());
  EXPECT_TRUE(decisions(strategy, *after, {0.2})[0].stop);
  const auto fresh = train::early_stopping();
  fresh->from_text(train::early_stopping()->to_text());
  EXPECT_FALSE(decisions(strategy, *fresh, {1.0})[0].stop);
}

TEST(EarlyStopping, StopsFitAndSaysWhy) {
  Training t(2);
  std::ostringstream out;
  const train::History history =
      t.fit(known_batches(), {.epochs = 50,
                              .callbacks = {train::early_stopping({.monitor = "accuracy", .patience = 1})},
                              .out = &out});  // an accuracy that rises is no improvement here
  EXPECT_LT(history.epochs.size(), 50u);
  EXPECT_NE(history.stopped.find("accuracy has not improved"), std::string::npos) << history.stopped;
  EXPECT_NE(out.str().find("stop (accuracy has not improved"), std::string::npos) << out.str();
}

TEST(ReduceOnPlateau, LowersTheRate) {
  MirroredStrategy strategy(on_cpus(1));
  const auto callback = train::reduce_on_plateau({.factor = 0.5, .patience = 1});
  const auto made = decisions(strategy, *callback, {1, 1, 1, 1, 0.5});
  EXPECT_FALSE(made[1].learning_rate);
  EXPECT_EQ(made[2].learning_rate, 0.5);
  const auto after = train::reduce_on_plateau({.factor = 0.5, .patience = 1});
  after->from_text(callback->to_text());
  train::Training training{.strategy = strategy, .epoch = 5, .learning_rate = 0.5};
  EXPECT_FALSE(after->epoch_ends(training, {{"val_loss", 2}}).learning_rate);
  EXPECT_EQ(after->epoch_ends(training, {{"val_loss", 2}}).learning_rate, 0.25);
}

TEST(LearningRateScheduler, SetsTheRateOfAnEpoch) {
  Training t(2);
  std::vector<double> rates;
  t.fit(known_batches(),
        {.epochs = 3,
         .callbacks = {train::learning_rate_scheduler([](int epoch, double) { return 0.1 / (1 + epoch); }),
                       train::lambda({.epoch_ends = [&](const train::Training& its, const train::Logs&) {
                         rates.push_back(its.learning_rate);
                         return train::Decision{};
                       }})}});
  EXPECT_EQ(rates, (std::vector<double>{0.1, 0.1 / 2, 0.1 / 3}));
  EXPECT_DOUBLE_EQ(t.optimizer.learning_rate(), 0.1 / 3);
}

TEST(TerminateOnNan, StopsAfterTheStep) {
  Training t(2);
  Batch rows = known_rows(40);
  rows.rows[25][3] = std::nan("");
  const train::History history =
      t.fit(data::from_tensor_slices(rows).batch(10), {.epochs = 5, .callbacks = {train::terminate_on_nan()}});
  EXPECT_EQ(t.optimizer.steps(), 3);
  EXPECT_EQ(history.epochs.size(), 1u);
  EXPECT_EQ(history.stopped, "loss is nan after step 3");
}

TEST(Lambda, CanEndAnEpochAndSave) {
  Training t(1);
  int saved = 0;
  const train::History history =
      t.fit(known_batches(), {.epochs = 2,
                              .callbacks = {train::lambda({.batch_ends =
                                                               [](const train::Training& its) {
                                                                 return train::Decision{.end_epoch = its.batch == 2,
                                                                                        .save = its.batch == 2};
                                                               },
                                                           .save = [&](const train::Training&) { ++saved; },
                                                           .decides_in_batches = true})}});
  EXPECT_EQ(t.optimizer.steps(), 4);
  EXPECT_EQ(saved, 2);
  EXPECT_EQ(history.stopped, "");
}

TEST(Timer, MeasuresEpochs) {
  Training t(1);
  const auto timer = std::make_shared<train::Timer>();
  t.fit(known_batches(), {.epochs = 2, .validation = known_batches(), .callbacks = {timer}});
  ASSERT_EQ(timer->epochs().size(), 2u);
  for (const train::Timer::Epoch& epoch : timer->epochs()) {
    EXPECT_NEAR(epoch.rows_per_second * epoch.seconds, 53, 1e-6);
    EXPECT_GE(epoch.input_wait_share, 0);
    EXPECT_LE(epoch.input_wait_share, 1);
  }
}

TEST(Timer, RestartsWithASecondTraining) {
  Training t(1);
  const auto timer = std::make_shared<train::Timer>();
  for (const int epochs : {2, 1}) {
    t.fit(known_batches(), {.epochs = epochs, .callbacks = {timer}});
    EXPECT_EQ(std::ssize(timer->epochs()), epochs);
  }
}

TEST(Agreement, IsTheSameForAllWorkers) {
  using train::detail::Ballot;
  const Ballot all = train::detail::outcome(
      {{.decision = {}, .learning_rate = 0.1},
       {.decision = {.stop = true, .reason = "a"}, .learning_rate = 0.1, .decides_in_batches = true},
       {.decision = {.learning_rate = 0.2, .reason = "b"}, .learning_rate = 0.1}});
  EXPECT_EQ(all.decision, (train::Decision{.stop = true, .learning_rate = 0.2, .reason = "a; b"}));
  EXPECT_TRUE(all.decides_in_batches);
  EXPECT_FALSE(all.terminates);
  EXPECT_EQ(all.savers, 0u);
  const Ballot saving = train::detail::outcome(
      {{.savers = train::detail::saver_bit(1)}, {.savers = train::detail::saver_bit(70), .terminates = true}});
  EXPECT_TRUE(saving.terminates);
  EXPECT_EQ(saving.savers, train::detail::saver_bit(1) | train::detail::saver_bit(63));
  expect_error(
      [] {
        train::detail::outcome({{.learning_rate = 0.1}, {.learning_rate = 0.1}, {.learning_rate = 0.2}});
      },
      Code::FailedPrecondition, errors::kOptimizer, {"0.1 on worker 0 and 0.2 on worker 2", ".schedule"});
}

}  // namespace
}  // namespace lockstep
