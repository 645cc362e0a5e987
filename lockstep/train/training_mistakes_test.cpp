#include <gtest/gtest.h>

#include <functional>
#include <string>
#include <vector>

#include "lockstep/train/callbacks.h"
#include "lockstep/train/callbacks/checkpoints.h"
#include "lockstep/train/checkpoint/errors.h"
#include "lockstep/train/checkpoint/manager.h"
#include "tests/support/expect_error.h"
#include "tests/support/fit_support.h"
#include "tests/support/temporary_folder.h"

// One clear error for each mistake with labels, batches and folders, and none for what only looks like one.
namespace lockstep {
namespace {

struct TrainingMistake {
  std::string name;
  std::function<void(Training&, const TemporaryFolder&)> make;
  Code code;
  int number;
  std::vector<std::string> fragments;
};

/// Trains on the known rows with other labels.
void fit_on_labels(Training& t, const std::function<at::Tensor(const at::Tensor&)>& relabel) {
  Batch rows = known_rows(20);
  rows.labels = relabel(rows.labels);
  t.fit(data::from_tensor_slices(rows).batch(5), {});
}

void fit_with(Training& t, train::Loss loss, std::vector<train::MetricPtr> metrics = {}) {
  train::Model model(t.net, t.optimizer, {.loss = std::move(loss), .metrics = std::move(metrics)});
  model.fit(known_batches(), {.verbose = train::Verbose::Silent});
}

train::FitOptions<Batch> saved_to(const std::string& folder, bool resume = false) {
  return {.callbacks = {train::model_checkpoint({.folder = folder})}, .resume = resume};
}

/// A training of a model with another width, whose checkpoint is in the folder.
void save_other_model(const TemporaryFolder& folder) {
  Training t(2);
  auto net = t.strategy.make<Net>(12, 0.3);
  auto optimizer = t.strategy.make_optimizer<torch::optim::Adam>(net, torch::optim::AdamOptions(0.01));
  train::Model model(net, optimizer, {.loss = train::losses::cross_entropy()});
  auto options = saved_to(folder / "run");
  options.verbose = train::Verbose::Silent;
  model.fit(known_batches(), options);
}

std::vector<TrainingMistake> training_mistakes() {
  using enum Code;
  return {
      {"labels as floating point",
       [](auto& t, auto&) { fit_on_labels(t, [](auto& y) { return y.to(at::kFloat); }); },
       InvalidArgument,
       errors::kShape,
       {"cross_entropy needs scores [rows, classes, ...] and class numbers [rows, ...] as int64", "Float",
        "labels.to(torch::kLong)"}},
      {"labels of 32 bits",
       [](auto& t, auto&) { fit_on_labels(t, [](auto& y) { return y.to(at::kInt); }); },
       InvalidArgument,
       errors::kShape,
       {"class numbers [rows, ...] as int64", "Int"}},
      {"a column of labels",
       [](auto& t, auto&) { fit_on_labels(t, [](auto& y) { return y.unsqueeze(1); }); },
       InvalidArgument,
       errors::kShape,
       {"class numbers [rows, ...] as int64", "squeeze(1)"}},
      {"more classes than scores",
       [](auto& t, auto&) { fit_on_labels(t, [](auto& y) { return y + 2; }); },
       InvalidArgument,
       errors::kShape,
       {"class numbers must be from 0 to 3, because the model returns 4 scores", "count classes from 0"}},
      {"classes counted from 1 backwards",
       [](auto& t, auto&) { fit_on_labels(t, [](auto& y) { return y - 1; }); },
       InvalidArgument,
       errors::kShape,
       {"class numbers must be from 0 to 3", "targets from -1 to "}},
      {"mse of scores and class numbers",
       [](auto& t, auto&) { fit_with(t, train::losses::mse()); },
       InvalidArgument,
       errors::kShape,
       {"mse needs an output and a target of the same shape"}},
      {"a metric for other classes",
       [](auto& t, auto&) { fit_with(t, train::losses::cross_entropy(), {train::metrics::f_beta({.classes = 10})}); },
       InvalidArgument,
       errors::kShape,
       {"\"f_beta\" was made for 10 classes, and the output has 4"}},
      {"a metric that is null",
       [](auto& t, auto&) { fit_with(t, train::losses::cross_entropy(), {nullptr}); },
       InvalidArgument,
       errors::kBadOption,
       {"a metric must not be null"}},
      {"rows that are not batched",
       [](auto& t, auto&) { t.fit(data::from_tensor_slices(known_rows(20)), {}); },
       InvalidArgument,
       errors::kShape,
       {"every component needs a first dimension", "call batch()"}},
      {"a checkpoint of another model",
       [](auto& t, auto& folder) {
         save_other_model(folder);
         t.fit(known_batches(), saved_to(folder / "run", true));
       },
       InvalidArgument,
       errors::kSavedState,
       {"first.weight"}},
      {"a folder that a manager has",
       [](auto& t, auto& folder) {
         train::CheckpointManager manager(folder / "run");
         t.fit(known_batches(), saved_to(folder / "run"));
       },
       FailedPrecondition,
       errors::kCheckpoint,
       {"another checkpoint manager writes to", "a folder of its own"}},
      {"one folder for two callbacks",
       [](auto& t, auto& folder) {
         auto options = saved_to(folder / "run");
         options.callbacks.push_back(train::model_checkpoint({.folder = folder / "run/"}));
         t.fit(known_batches(), options);
       },
       FailedPrecondition,
       errors::kCheckpoint,
       {"another checkpoint manager writes to"}},
      {"a folder that is a file",
       [](auto& t, auto& folder) { t.fit(known_batches(), saved_to(folder.file("run", "x"))); },
       NotFound,
       errors::kFile,
       {"run"}},
  };
}

TEST(TrainingMistakes, AreOneClearErrorEach) {
  for (const TrainingMistake& mistake : training_mistakes()) {
    const TemporaryFolder folder;
    Training t(2);
    expect_error([&] { mistake.make(t, folder); }, mistake.code, mistake.number, mistake.fragments, mistake.name);
  }
}

TEST(FitTwice, BeginsAgainWithTheSameCallbacks) {
  Training t(2);
  const TemporaryFolder folder;
  // The accuracy is greater than -1 in every epoch: none is better than the first.
  const auto stop = train::early_stopping({.monitor = "accuracy", .patience = 1, .min_delta = 2});
  const auto slower = train::reduce_on_plateau({.monitor = "accuracy", .factor = 0.5, .patience = 0, .threshold = 2});
  const auto timer = std::make_shared<train::Timer>();
  const train::FitOptions<Batch> options{.epochs = 5, .callbacks = {stop, slower, timer}};
  const train::History first = t.fit(known_batches(), options);
  EXPECT_EQ(first.epochs.size(), 3u) << first.stopped;
  t.optimizer.set_learning_rate(0.01);
  const train::History second = t.fit(known_batches(), options);
  EXPECT_EQ(second.epochs.size(), 3u) << "it looks at this training alone: " << second.stopped;
  EXPECT_DOUBLE_EQ(t.optimizer.learning_rate(), 0.01 * 0.5 * 0.5);
}

TEST(FitTwice, ContinuesWithTheWeightsItHas) {
  Training once(1, 0.0), twice(1, 0.0);
  const auto batches = data::from_tensor_slices(known_rows(40)).batch(10);
  once.fit(batches, {.epochs = 4});
  twice.fit(batches, {.epochs = 2});
  const train::History second = twice.fit(batches, {.epochs = 4, .initial_epoch = 2});
  EXPECT_EQ(second.epochs.size(), 2u);
  EXPECT_EQ(first_difference(twice.weights(), once.weights()), "");
}

TEST(StepsPerEpoch, MayBeMoreThanTheDataHas) {
  Training t(2);
  const auto batches = data::from_tensor_slices(known_rows(20)).batch(5);
  const train::History history = t.fit(batches, {.epochs = 2, .validation = batches, .steps_per_epoch = 7});
  EXPECT_EQ(t.optimizer.steps(), 14) << "the next pass begins where one ends";
  EXPECT_EQ(history.epochs.size(), 2u);
}

}  // namespace
}  // namespace lockstep
