#include "lockstep/train/callbacks.h"

#include <gtest/gtest.h>
#include <torch/optim/schedulers/step_lr.h>
#include <torch/optim/sgd.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <functional>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "lockstep/train/callbacks/torch_scheduler.h"
#include "lockstep/train/logs/event_reader.h"
#include "tests/support/expect_error.h"
#include "tests/support/lives.h"

// Callbacks whose state continues with the training.
namespace lockstep {
namespace {

using train::CallbackPtr;

CallbackPtr halving(const MirroredOptimizerBase& optimizer, unsigned every, bool every_step = false) {
  return train::torch_scheduler(
      optimizer,
      [every](torch::optim::Optimizer& of) { return std::make_shared<torch::optim::StepLR>(of, every, 0.5); },
      {.every_step = every_step});
}

/// Every built-in callback that remembers something.
std::map<std::string, CallbackPtr> callbacks_with_state(const TemporaryFolder& folder, Training& t) {
  return {{"early_stopping", train::early_stopping({.monitor = "loss", .patience = 50})},
          {"reduce_on_plateau",
           train::reduce_on_plateau({.monitor = "loss", .factor = 0.9, .patience = 0, .threshold = 2})},
          {"csv_logger", train::csv_logger({.path = folder / "a.csv", .every_steps = 1})},
          {"json_lines_logger", train::json_lines_logger({.path = folder / "a.jsonl"})},
          {"tensor_board", train::tensor_board({.folder = folder / "logs", .every_steps = 2})},
          {"model_checkpoint", train::model_checkpoint({.folder = folder / "checkpoints"})},
          {"backup_and_restore", train::backup_and_restore({.folder = folder / "backup", .delete_checkpoint = false})},
          {"torch_scheduler", halving(t.optimizer, 2)},
          {"timer", std::make_shared<train::Timer>()}};
}

TEST(CallbackState, OfEachBuiltInOneIsTakenUp) {
  const TemporaryFolder folder, other;
  Training t(1), u(1);
  auto written = callbacks_with_state(folder, t), read = callbacks_with_state(other, u);
  std::vector<CallbackPtr> all;
  for (const auto& [name, callback] : written) all.push_back(callback);
  t.fit(known_batches(), {.epochs = 2, .callbacks = all});
  for (const auto& [name, callback] : written) {
    const std::string text = callback->to_text();
    EXPECT_NE(text, read.at(name)->to_text()) << name << ": blind, nothing to remember";
    read.at(name)->from_text(text);
    EXPECT_EQ(read.at(name)->to_text(), text) << name;
  }
}

TEST(CallbackState, OfTheOthersIsEmpty) {
  for (const CallbackPtr& callback : {train::learning_rate_scheduler([](int, double rate) { return rate * 0.5; }),
                                      train::terminate_on_nan(), train::lambda({})}) {
    Training t(1);
    t.fit(known_batches(), {.epochs = 1, .callbacks = {callback}});
    EXPECT_EQ(callback->to_text(), "") << callback->name();
  }
}

TEST(Timer, HasTheEpochsBeforeTheTrainingWasResumed) {
  const TemporaryFolder folder;
  std::vector<std::shared_ptr<train::Timer>> timers;
  for (const std::int64_t killed_after : {8, -1}) {
    Life life(1, folder);
    auto options = life.options(SaveIn::kBatch | SaveIn::kValidation, {.after_step = killed_after});
    timers.push_back(std::make_shared<train::Timer>());
    options.callbacks.insert(options.callbacks.begin(), timers.back());
    if (killed_after > 0) {
      EXPECT_THROW(life.fit(options), Killed);
    } else {
      life.fit(options);
    }
  }
  const auto &before = timers[0]->epochs(), &after = timers[1]->epochs();
  ASSERT_EQ(before.size(), 1u);
  ASSERT_EQ(after.size(), static_cast<std::size_t>(kEpochs));
  EXPECT_EQ(after[0].seconds, before[0].seconds);
  EXPECT_EQ(after[0].rows_per_second, before[0].rows_per_second);
}

std::vector<double> rates_of_steps(Training& t, const CallbackPtr& scheduler, train::FitOptions<Batch> options) {
  std::vector<double> rates;
  t.model.set_train_step([&](const Batch&) { rates.push_back(t.optimizer.learning_rate()); });
  options.callbacks.insert(options.callbacks.begin(), scheduler);
  t.fit(known_batches(), options);
  return rates;
}

TEST(TorchScheduler, SetsTheRateOfEachEpochOrStep) {
  Training t(1);
  auto rates = rates_of_steps(t, halving(t.optimizer, 2), {.epochs = 5});
  ASSERT_EQ(rates.size(), 30u);
  for (std::size_t step = 0; step < rates.size(); ++step)
    EXPECT_DOUBLE_EQ(rates[step], 0.01 * std::pow(0.5, step / 12)) << step;
  Training u(1);
  rates = rates_of_steps(u, halving(u.optimizer, 4, /*every_step=*/true), {.epochs = 2});
  ASSERT_EQ(rates.size(), 12u);
  for (std::size_t step = 0; step < rates.size(); ++step)
    EXPECT_DOUBLE_EQ(rates[step], 0.01 * std::pow(0.5, step / 4)) << step;
}

TEST(TorchScheduler, CallbacksSeeTheRateOfTheStep) {
  Training t(1);
  std::vector<double> seen;
  const CallbackPtr notes = train::lambda({.batch_ends = [&](const train::Training& its) {
    seen.push_back(its.learning_rate);
    return train::Decision{};
  }});
  const auto rates = rates_of_steps(t, halving(t.optimizer, 1, /*every_step=*/true), {.callbacks = {notes}});
  EXPECT_EQ(seen.size(), 6u);
  EXPECT_EQ(seen, rates);
}

TEST(TorchScheduler, ContinuesWhereItWas) {
  for (const bool every_step : {false, true}) {
    const TemporaryFolder folder, whole;
    const auto fit = [&](const TemporaryFolder& where, std::int64_t killed_after) {
      Life life(1, where);
      Training& t = life.training();
      auto options = life.options(SaveIn::kBatch, {.after_step = killed_after});
      options.callbacks.insert(options.callbacks.begin(), halving(t.optimizer, 1, every_step));
      return life.fit(options);
    };
    const Outcome expected = fit(whole, -1);
    EXPECT_THROW(fit(folder, 8), Killed);
    expect_same(fit(folder, -1), expected, every_step ? "steps" : "epochs");
  }
}

TEST(TorchScheduler, HasTheRateOfEachGroup) {
  Training t(1);
  using torch::optim::SGDOptions;
  auto optimizer = t.strategy.make_optimizer<torch::optim::SGD>(
      t.net, std::vector<ParameterGroup<SGDOptions>>{{{"second."}, SGDOptions(0.8)}, {{""}, SGDOptions(0.2)}});
  train::Model model(t.net, optimizer, {.loss = train::losses::cross_entropy()});
  model.fit(known_batches(), train::FitOptions<Batch>{
                                 .epochs = 2, .callbacks = {halving(optimizer, 1)}, .verbose = train::Verbose::Silent});
  EXPECT_DOUBLE_EQ(optimizer.learning_rate(0), 0.4);
  EXPECT_DOUBLE_EQ(optimizer.learning_rate(1), 0.1);
}

TEST(TorchScheduler, NeedsAScheduler) {
  Training t(1);
  expect_error([&] { train::torch_scheduler(t.optimizer, nullptr); }, Code::InvalidArgument, errors::kBadOption,
               {"needs a function that makes the scheduler"});
  const auto none = train::torch_scheduler(t.optimizer, [](torch::optim::Optimizer&) { return nullptr; });
  expect_error([&] { t.fit(known_batches(), {.callbacks = {none}}); }, Code::InvalidArgument, errors::kBadOption,
               {"returned null"});
}

/// How often each tag has a value at each step, once later files have taken back what they say of earlier ones.
std::map<std::string, std::map<std::int64_t, int>> values_in(const std::string& folder) {
  std::vector<std::string> files;
  for (const auto& file : std::filesystem::directory_iterator(folder)) files.push_back(file.path().string());
  std::ranges::sort(files);
  std::map<std::string, std::map<std::int64_t, int>> counts;
  for (const std::string& file : files) {
    for (const auto& event : train::detail::event::read_events(file).events) {
      if (event.starts_session) {
        for (auto& [tag, steps] : counts) steps.erase(steps.lower_bound(event.step), steps.end());
      }
      for (const auto& value : event.values) ++counts[value.tag][event.step];
    }
  }
  return counts;
}

train::TensorBoardOptions with_everything(const TemporaryFolder& folder) {
  return {.folder = folder / "logs",
          .histograms_every = 2,
          .images =
              [](const train::Training&) {
                return std::map<std::string, at::Tensor>{{"grey", torch::rand({4, 5})},
                                                         {"rgb", torch::zeros({3, 4, 5}, at::kByte)}};
              },
          .texts =
              [](const train::Training& its) {
                return std::map<std::string, std::string>{{"note", str("after **", its.epoch, "**")}};
              },
          .hparams = {{"rate", 0.01}, {"layers", 2.0}, {"optimizer", std::string("adam")}, {"shuffled", true}}};
}

TEST(TensorBoard, ShowsHistogramsPicturesTextsAndHyperparametersOnceEach) {
  const TemporaryFolder folder;
  for (const std::int64_t killed_after : {9, 14, -1}) {
    Life life(1, folder);
    auto options = life.options(SaveIn::kEpoch | SaveIn::kBatch, {.after_step = killed_after});
    options.epochs = 4;
    options.callbacks.insert(options.callbacks.begin(), train::tensor_board(with_everything(folder)));
    if (killed_after > 0) {
      EXPECT_THROW(life.fit(options), Killed);
    } else {
      life.fit(options);
    }
  }
  using Steps = std::map<std::int64_t, int>;
  auto values = values_in(folder / "logs/train");
  const Steps each{{0, 1}, {1, 1}, {2, 1}, {3, 1}};
  for (const char* tag : {"epoch_loss", "grey", "rgb", "note"}) EXPECT_EQ(values[tag], each) << tag;
  Training t(1);
  for (const auto& parameter : t.net.named_parameters())
    EXPECT_EQ(values["model/" + parameter.key()], (Steps{{1, 1}, {3, 1}})) << parameter.key();
  for (const char* tag : {"_hparams_/experiment", "_hparams_/session_start_info"})
    EXPECT_EQ(values[tag], (Steps{{0, 1}})) << tag;
}

TEST(TensorBoard, RefusesWhatItCannotShow) {
  const TemporaryFolder folder;
  Training t(1);
  const auto fit = [&](const train::TensorBoardOptions& options) {
    return [&t, options] { t.fit(known_batches(), {.callbacks = {train::tensor_board(options)}}); };
  };
  expect_error(fit({.folder = folder / "a", .histograms_every = -1}), Code::InvalidArgument, errors::kBadOption,
               {"histograms_every must be >= 0, got -1"});
  expect_error(fit({.folder = folder / "a", .histograms_every = 1, .histograms_of = {"net"}}), Code::InvalidArgument,
               errors::kBadOption, {"the training has no part \"net\"", "it has model, optimizer, loop"});
  const auto batch_of_images = [](const train::Training&) {
    return std::map<std::string, at::Tensor>{{"digits", torch::zeros({8, 1, 4, 4})}};
  };
  expect_error(fit({.folder = folder / "a", .images = batch_of_images}), Code::InvalidArgument, errors::kStructure,
               {"image \"digits\" must be [height, width]", "got float32[8, 1, 4, 4]"});
}

}  // namespace
}  // namespace lockstep
