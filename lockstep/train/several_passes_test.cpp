#include <gtest/gtest.h>

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "lockstep/train/checkpoint/errors.h"
#include "tests/support/expect_error.h"
#include "tests/support/lives.h"

// Loops of a program's own with several passes in an epoch: each continues at its place.
namespace lockstep {
namespace {

/// Which rows a loop has seen, in their order: "a" the first set, "b" the second one.
using SeenRows = std::vector<std::string>;

struct Sets {
  std::vector<data::Dataset<at::Tensor>> trained_on, validated_on;
};

data::Dataset<at::Tensor> shuffled(std::int64_t rows) {
  return data::from_tensor_slices(torch::arange(rows)).shuffle(rows).batch(3);
}

/// `stop_at`: throws after so many validation steps of the second epoch.
SeenRows run_loop(const TemporaryFolder& folder, const Sets& sets, int moments, int stop_at = -1) {
  MirroredStrategy strategy({.devices = test_devices(1), .intra_op_threads = 1, .seed = 5});
  train::Loop loop(strategy, {.epochs = 3,
                              .callbacks = {std::make_shared<SaveIn>(moments),
                                            train::model_checkpoint({.folder = folder.path(), .every_epochs = 0})},
                              .verbose = train::Verbose::Silent,
                              .resume = true});
  SeenRows seen;
  const auto see = [&](const PerReplica<at::Tensor>& batch, const std::string& set) {
    std::string rows = set;
    for (std::int64_t i = 0; i < batch[0].size(0); ++i) rows += ' ' + std::to_string(batch[0][i].item<std::int64_t>());
    seen.push_back(rows);
    strategy.run([&] { loop.meters().add_mean(set, torch::ones({1})); });
  };
  std::vector<train::Batches<at::Tensor>> training(sets.trained_on.begin(), sets.trained_on.end());
  std::vector<train::Batches<at::Tensor>> validation(sets.validated_on.begin(), sets.validated_on.end());
  while (loop.next_epoch()) {
    int steps = 0;
    for (std::size_t i = 0; i < training.size(); ++i) {
      for (const auto& batch : loop.steps(training[i])) see(batch, "t" + std::to_string(i));
    }
    for (std::size_t i = 0; i < validation.size(); ++i) {
      for (const auto& batch : loop.validation_steps(validation[i])) {
        see(batch, "v" + std::to_string(i));
        if (loop.training().epoch == 1 && ++steps == stop_at) throw Killed();
      }
    }
  }
  return seen;
}

/// What a loop sees after it was resumed is the end of what one sees that was not.
void expect_resumes(const Sets& sets, int moments, int stop_at) {
  const TemporaryFolder folder, other;
  const SeenRows whole = run_loop(other, sets, 0);
  EXPECT_THROW(run_loop(folder, sets, moments, stop_at), Killed);
  const SeenRows rest = run_loop(folder, sets, moments);
  ASSERT_FALSE(rest.empty());
  ASSERT_LT(rest.size(), whole.size());
  EXPECT_EQ(rest, SeenRows(whole.end() - static_cast<std::ptrdiff_t>(rest.size()), whole.end()))
      << moments << ", " << stop_at;
}

TEST(SeveralPasses, ValidationSetsContinueAtTheirPlaces) {
  const Sets sets{.trained_on = {shuffled(7)}, .validated_on = {shuffled(8), shuffled(11), shuffled(5)}};
  for (const int stop_at : {1, 2, 4, 5, 8, 9}) {
    expect_resumes(sets, SaveIn::kEpoch, stop_at);
    expect_resumes(sets, SaveIn::kEpoch | SaveIn::kBatch | SaveIn::kValidated | SaveIn::kEpochEnd, stop_at);
  }
}

TEST(SeveralPasses, OfTheSameSetContinueAtItsPlace) {
  const auto set = shuffled(8);
  MirroredStrategy strategy({.devices = test_devices(1), .intra_op_threads = 1, .seed = 5});
  const auto run = [&](const TemporaryFolder& folder, int stop_after_epoch) {
    train::Loop loop(strategy, {.epochs = 3,
                                .callbacks = {std::make_shared<SaveIn>(SaveIn::kValidated),
                                              train::model_checkpoint({.folder = folder.path(), .every_epochs = 0})},
                                .verbose = train::Verbose::Silent,
                                .resume = true});
    const train::Batches<at::Tensor> batches(set), held_out(set);
    std::vector<std::string> seen;
    while (loop.next_epoch()) {
      for (const auto& batch : loop.steps(batches)) static_cast<void>(batch);
      for (int pass = 0; pass < 2; ++pass) {
        for (const auto& batch : loop.validation_steps(held_out)) {
          seen.push_back(std::to_string(batch[0][0].item<std::int64_t>()));
          if (loop.training().epoch == stop_after_epoch && pass == 1) throw Killed();
        }
      }
    }
    return seen;
  };
  const TemporaryFolder folder, other;
  const auto whole = run(other, -1);
  EXPECT_THROW(run(folder, 1), Killed);
  const auto rest = run(folder, -1);
  EXPECT_EQ(rest.size(), 9u) << "the second pass of the second epoch, and both of the third";
  EXPECT_EQ(rest, std::vector<std::string>(whole.end() - 9, whole.end()));
}

/// The rows of trainings and validations of three epochs over one `Batches`, which is made by `make(strategy)`.
using MakeBatches = std::function<train::Batches<at::Tensor>(Strategy&)>;
SeenRows run_over_one(const TemporaryFolder& folder, const MakeBatches& make, std::optional<int> steps_per_epoch,
                      int stop_at = -1) {
  MirroredStrategy strategy({.devices = test_devices(1), .intra_op_threads = 1, .seed = 5});
  train::Loop loop(strategy, {.epochs = 3,
                              .steps_per_epoch = steps_per_epoch,
                              .callbacks = {std::make_shared<SaveIn>(SaveIn::kBatch | SaveIn::kValidated),
                                            train::model_checkpoint({.folder = folder.path(), .every_epochs = 0})},
                              .verbose = train::Verbose::Silent,
                              .resume = true});
  const train::Batches<at::Tensor> batches = make(strategy);
  SeenRows seen;
  const auto see = [&](const PerReplica<at::Tensor>& batch, const char* pass) {
    seen.push_back(lockstep::str(pass, batch[0][0].item<std::int64_t>()));
    if (static_cast<int>(seen.size()) == stop_at) throw Killed();
  };
  while (loop.next_epoch()) {
    for (const auto& batch : loop.steps(batches)) see(batch, "t");
    for (const auto& batch : loop.validation_steps(batches)) see(batch, "v");
  }
  return seen;
}

TEST(SeveralPasses, TrainingAndValidationOverOneBatchesHaveAPlaceEach) {
  const auto dataset = [](Strategy&) { return train::Batches(shuffled(14)); };
  const auto distributed = [](Strategy& strategy) { return train::Batches(strategy.distribute(shuffled(14))); };
  const auto check = [](const MakeBatches& make, std::optional<int> steps_per_epoch) {
    const TemporaryFolder other;
    const SeenRows whole = run_over_one(other, make, steps_per_epoch);
    ASSERT_EQ(whole.size(), 3u * static_cast<std::size_t>(steps_per_epoch.value_or(5) + 5));
    for (int stop_at = 2; stop_at < static_cast<int>(whole.size()); stop_at += 3) {
      const TemporaryFolder folder;
      EXPECT_THROW(run_over_one(folder, make, steps_per_epoch, stop_at), Killed);
      const SeenRows rest = run_over_one(folder, make, steps_per_epoch);
      EXPECT_EQ(rest, SeenRows(whole.end() - static_cast<std::ptrdiff_t>(rest.size()), whole.end())) << stop_at;
    }
  };
  for (const auto& steps_per_epoch : {std::optional<int>(), std::optional(3)}) {
    check(dataset, steps_per_epoch);
    const TemporaryFolder folder;
    expect_error([&] { run_over_one(folder, distributed, steps_per_epoch); }, Code::InvalidArgument, errors::kBadOption,
                 {"must not share one distributed dataset", "Batches of the dataset itself"});
  }
}

TEST(SeveralPasses, TrainingSetsContinueAtTheirPlaces) {
  const Sets sets{.trained_on = {shuffled(7), shuffled(10)}, .validated_on = {shuffled(8)}};
  expect_resumes(sets, SaveIn::kBatch, 1);
  expect_resumes(sets, SaveIn::kEpochEnd, 2);
}

TEST(SeveralPasses, BatchesMayBeMadeInTheEpoch) {
  const TemporaryFolder folder;
  MirroredStrategy strategy({.devices = test_devices(1), .intra_op_threads = 1, .seed = 5});
  train::Loop loop(strategy, {.epochs = 2,
                              .callbacks = {train::model_checkpoint({.folder = folder.path()})},
                              .verbose = train::Verbose::Silent});
  int rows = 0;
  while (loop.next_epoch()) {
    for (const auto& batch : loop.steps(train::Batches(shuffled(7)))) rows += static_cast<int>(batch[0].size(0));
  }
  EXPECT_EQ(rows, 14);
}

/// A loop of one epoch with two passes of training or of validation, each of which has a value by its name.
train::Logs values_of_two(const std::string& first, const std::string& second, bool training) {
  MirroredStrategy strategy({.devices = test_devices(1), .intra_op_threads = 1, .seed = 5});
  const train::Batches<at::Tensor> batches(shuffled(7)), other(shuffled(4));
  train::Loop loop(strategy, {.metrics = {train::metrics::accuracy()}, .verbose = train::Verbose::Silent});
  const auto pass = [&](const train::Batches<at::Tensor>& over, const std::string& name, bool is_training,
                        double value) {
    for (const auto& batch : is_training ? loop.steps(over) : loop.validation_steps(over)) {
      static_cast<void>(batch);
      strategy.run([&] {
        if (name == "accuracy")
          loop.meters().add(torch::ones({1, 2}), torch::zeros({1}, torch::kLong));
        else
          loop.meters().add_mean(name, torch::full({1}, value));
      });
    }
  };
  while (loop.next_epoch()) {
    if (!training) pass(batches, "trained", true, 1);
    pass(batches, first, training, 2);
    pass(other, second, training, 3);
  }
  return loop.history().epochs.at(0);
}

TEST(SeveralPasses, HaveTheValuesOfAllOfThem) {
  EXPECT_EQ(values_of_two("a", "b", true), (train::Logs{{"a", 2}, {"b", 3}}));
  EXPECT_EQ(values_of_two("a", "b", false), (train::Logs{{"trained", 1}, {"val_a", 2}, {"val_b", 3}}));
  EXPECT_EQ(values_of_two("trained", "b", false), (train::Logs{{"trained", 1}, {"val_b", 3}, {"val_trained", 2}}));
  EXPECT_TRUE(values_of_two("accuracy", "b", true).contains("accuracy")) << "the second pass adds nothing to it";
}

TEST(SeveralPasses, WithTheSameNameAreRefused) {
  expect_error([] { values_of_two("a", "a", true); }, Code::InvalidArgument, errors::kBadOption,
               {"two training passes of an epoch have a value \"a\"", "epoch 1 of 1", "add_mean another name"});
  for (const char* name : {"a", "accuracy"}) {
    expect_error([&] { values_of_two(name, name, false); }, Code::InvalidArgument, errors::kBadOption,
                 {lockstep::str("two validation passes of an epoch have a value \"", name, '"')});
  }
}

/// The steps of two training passes of an epoch, the first of which may end with a `break`.
std::vector<int> steps_of_two(int break_after, bool stops = false) {
  MirroredStrategy strategy({.devices = test_devices(1), .intra_op_threads = 1, .seed = 5});
  const train::Batches<at::Tensor> one(shuffled(7)), two(shuffled(4));
  train::Loop loop(strategy, {.steps_per_epoch = 5, .verbose = train::Verbose::Silent});
  std::vector<int> steps(2);
  while (loop.next_epoch()) {
    for (const auto& batch : loop.steps(one)) {
      strategy.run([&] { loop.meters().add_mean("a", torch::ones({1})); });
      static_cast<void>(batch);
      if (++steps[0] == break_after) break;
      if (stops && steps[0] == 5) loop.stop("enough");
    }
    for (const auto& batch : loop.steps(two)) {
      static_cast<void>(batch);
      ++steps[1];
    }
  }
  EXPECT_TRUE(loop.history().epochs.at(0).contains("a"));
  return steps;
}

TEST(SeveralPasses, ShareTheStepsOfAnEpoch) {
  // The step after which a loop breaks out of a pass is not counted.
  EXPECT_EQ(steps_of_two(3), (std::vector<int>{3, 3}));
  EXPECT_EQ(steps_of_two(-1, /*stops=*/true), (std::vector<int>{5, 0}));
  expect_error([] { steps_of_two(-1); }, Code::FailedPrecondition, errors::kWrongContext,
               {"no step is left for another training pass", "all 5 steps of steps_per_epoch", "epoch 1 of 1"});
}

TEST(SeveralPasses, SetsThatTakeTurnsAreRefused) {
  const TemporaryFolder folder;
  MirroredStrategy strategy({.devices = test_devices(1), .intra_op_threads = 1, .seed = 5});
  const train::Batches<at::Tensor> batches(shuffled(7)), one(shuffled(4)), two(shuffled(5));
  const auto run = [&](bool with_checkpoints) {
    train::LoopOptions options{.epochs = 3, .verbose = train::Verbose::Silent};
    if (with_checkpoints) options.callbacks = {train::model_checkpoint({.folder = folder.path()})};
    train::Loop loop(strategy, options);
    while (loop.next_epoch()) {
      for (const auto& batch : loop.steps(batches)) static_cast<void>(batch);
      for (const auto& batch : loop.validation_steps(loop.training().epoch % 2 == 0 ? one : two))
        static_cast<void>(batch);
    }
  };
  run(false);
  expect_error([&] { run(true); }, Code::FailedPrecondition, errors::kCheckpoint,
               {"take turns from epoch to epoch", "epoch 3 of 3", "inexact_resume = true"});
}

}  // namespace
}  // namespace lockstep
