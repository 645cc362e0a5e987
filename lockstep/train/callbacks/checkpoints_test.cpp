#include "lockstep/train/callbacks/checkpoints.h"

#include <gtest/gtest.h>

#include <chrono>
#include <cstdint>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "lockstep/train/checkpoint/errors.h"
#include "lockstep/train/checkpoint/folder.h"
#include "tests/support/expect_error.h"
#include "tests/support/fit_support.h"
#include "tests/support/held_files.h"
#include "tests/support/logged_lines.h"
#include "tests/support/same_bits.h"
#include "tests/support/temporary_folder.h"

namespace lockstep {
namespace {

using Steps = std::vector<std::int64_t>;

Steps checkpoints_in(const std::string& folder) {
  Steps steps;
  for (const train::CheckpointEntry& entry : train::list_checkpoints(folder)) steps.push_back(entry.step);
  return steps;
}

/// The steps whose checkpoints are there after three epochs of six steps.
Steps steps_kept(train::ModelCheckpointOptions options) {
  const TemporaryFolder folder;
  options.folder = folder / "checkpoints";
  Training t(2);
  t.fit(known_batches(),
        {.epochs = 3, .validation = known_batches(9, 4), .callbacks = {train::model_checkpoint(options)}});
  for (const train::CheckpointEntry& entry : train::list_checkpoints(options.folder))
    EXPECT_EQ(train::find_damage(entry.path), "");
  return checkpoints_in(options.folder);
}

TEST(ModelCheckpoint, SavesWhenItIsDue) {
  const train::CheckpointOptions all{.keep = {.keep = 0}};
  EXPECT_EQ(steps_kept({.checkpoints = all}), (Steps{6, 12, 18}));
  EXPECT_EQ(steps_kept({.every_epochs = 2, .checkpoints = all}), (Steps{12}));
  EXPECT_EQ(steps_kept({.every_epochs = 0, .every = {.steps = 5}, .checkpoints = all}), (Steps{5, 10, 15}));
  EXPECT_EQ(steps_kept({.every = {.steps = 7}, .checkpoints = all}), (Steps{6, 7, 12, 14, 18}));
  EXPECT_EQ(steps_kept({.every_epochs = 0, .every = {.seconds = 1e-9}, .checkpoints = all}).size(), 18u);
  EXPECT_EQ(steps_kept({.every = {.steps = 1}, .checkpoints = {.keep = {.keep = 2}, .background = false}}),
            (Steps{17, 18}));
}

TEST(ModelCheckpoint, KeepsTheBestByAValueOfTheEpoch) {
  // The loss falls in every epoch: the last is the best, and by the greatest loss the first is.
  train::ModelCheckpointOptions options{.checkpoints = {.keep = {.keep = 1, .best_metric = "loss"}}};
  EXPECT_EQ(steps_kept(options), (Steps{18}));
  options.checkpoints.keep.highest_is_best = true;
  EXPECT_EQ(steps_kept(options), (Steps{6, 18}));
  options.only_best = true;
  EXPECT_EQ(steps_kept(options), (Steps{6}));
}

TEST(ModelCheckpoint, ABestThatWasLeftOutDoesNotCount) {
  const TemporaryFolder folder;
  const LoggedLines lines;
  MirroredStrategy strategy({.devices = test_devices(1), .intra_op_threads = 1, .seed = 5});
  const train::CheckpointOptions keep_best{.keep = {.keep = 0, .best_metric = "score"}, .leave_out_when_busy = true};
  train::Loop loop(
      strategy,
      {.epochs = 4,
       .callbacks = {train::model_checkpoint({.folder = folder.path(), .checkpoints = keep_best, .only_best = true})},
       .verbose = train::Verbose::Silent});
  const train::Batches<at::Tensor> batches(data::from_tensor_slices(torch::arange(2)).batch(2));
  HeldFiles held;  // the first checkpoint is still being written when the second one is due
  while (loop.next_epoch()) {
    const int epoch = loop.training().epoch;
    const double score = epoch == 0 ? 3 : epoch == 1 ? 1 : 2;  // that of epoch 1 is left out
    if (epoch == 2) {
      held.release();
      while (checkpoints_in(folder.path()).empty()) std::this_thread::sleep_for(std::chrono::milliseconds(1));
      std::this_thread::sleep_for(std::chrono::milliseconds(20));
    }
    for (const auto& batch : loop.steps(batches)) {
      static_cast<void>(batch);
      strategy.run([&] { loop.meters().add_mean("score", torch::full({1}, score)); });
    }
  }
  EXPECT_EQ(lines.count("is left out: the previous one is still being written"), 1);
  EXPECT_EQ(checkpoints_in(folder.path()), (Steps{1, 3})) << "score 2 is better than the 3 that was saved";
}

TEST(ModelCheckpoint, SavesWhenAnotherCallbackAsksForIt) {
  const TemporaryFolder folder;
  Training t(2);
  t.fit(known_batches(),
        {.epochs = 1,
         .callbacks = {
             train::model_checkpoint({.folder = folder / "a", .every_epochs = 0}),
             train::model_checkpoint({.folder = folder / "b", .every_epochs = 0, .every = {.steps = 3}}),
             train::lambda(
                 {.batch_ends = [](const train::Training& its) { return train::Decision{.save = its.step == 2}; },
                  .decides_in_batches = true})}});
  EXPECT_EQ(checkpoints_in(folder / "a"), (Steps{2})) << "what is due for another one is not for it";
  EXPECT_EQ(checkpoints_in(folder / "b"), (Steps{2, 3, 6}));
}

TEST(ModelCheckpoint, HoldsWhatTheTrainingConsistsOf) {
  const TemporaryFolder folder;
  Training t(2);
  t.fit(known_batches(), {.epochs = 1, .callbacks = {train::model_checkpoint({.folder = folder.path()})}});
  const Snapshot snapshot = train::read_checkpoint(train::list_checkpoints(folder.path()).at(0).path);
  EXPECT_EQ(first_difference({snapshot.shared.at("model/first.weight")},
                             {t.net.named_parameters()["first.weight"].detach().cpu()}),
            "");
  for (const char* name : {"optimizer/steps", "loop/place", "loop/batches/position/place", "random/seed"})
    EXPECT_TRUE(snapshot.texts.contains(name)) << name;
  EXPECT_EQ(train::read_manifest(train::list_checkpoints(folder.path()).at(0).path).metrics.count("loss"), 1u);
}

TEST(ModelCheckpoint, RefusesTheFolderOfAnotherTraining) {
  const TemporaryFolder folder;
  Training first(1), second(1);
  first.fit(known_batches(), {.epochs = 2, .callbacks = {train::model_checkpoint({.folder = folder.path()})}});
  expect_error(
      [&] {
        second.fit(known_batches(), {.epochs = 1, .callbacks = {train::model_checkpoint({.folder = folder.path()})}});
      },
      Code::FailedPrecondition, errors::kCheckpoint, {"which is later than step 6", ".resume = true"});
}

TEST(ModelCheckpoint, WantsSensibleOptions) {
  const struct {
    train::ModelCheckpointOptions options;
    const char* part;
  } cases[] = {
      {{.folder = ""}, "folder must not be empty"},
      {{.every_epochs = -1}, "every_epochs must be >= 0, got -1"},
      {{.every = {.steps = -2}}, "every must be >= 0, got -2 steps"},
      {{.only_best = true}, "only_best needs a metric"},
      {{.checkpoints = {.keep = {.keep_optimizer = 1}}}, "keep_optimizer must be >= 2"},
  };
  for (const auto& each : cases) {
    expect_error([&] { train::model_checkpoint(each.options); }, Code::InvalidArgument, errors::kBadOption,
                 {each.part});
  }
  const TemporaryFolder folder;
  Training t(1);
  expect_error(
      [&] {
        t.fit(known_batches(),
              {.callbacks = {train::model_checkpoint(
                   {.folder = folder.path(), .checkpoints = {.keep = {.best_metric = "val_f1"}}, .only_best = true})}});
      },
      Code::InvalidArgument, errors::kBadOption, {"monitors \"val_f1\"", "it has accuracy, loss"});
}

TEST(BackupAndRestore, ContinuesByItselfAndCleansUp) {
  const TemporaryFolder folder, other;
  const auto options = [](const TemporaryFolder& where, int killed_in_epoch) {
    return train::FitOptions<Batch>{
        .epochs = 4,
        .callbacks = {train::backup_and_restore({.folder = where.path()}),
                      train::lambda({.epoch_begins = [=](const train::Training& its) -> train::Decision {
                        if (its.epoch == killed_in_epoch) throw std::runtime_error("killed");
                        return {};
                      }})}};
  };
  Training whole(2), first(2), second(2);
  const train::History expected = whole.fit(known_batches(), options(other, -1));
  EXPECT_ANY_THROW(first.fit(known_batches(), options(folder, 3)));
  EXPECT_EQ(checkpoints_in(folder.path()), (Steps{12, 18})) << "two, in case that one is damaged";
  EXPECT_EQ(second.fit(known_batches(), options(folder, -1)).epochs, expected.epochs);
  EXPECT_EQ(first_difference(second.weights(), whole.weights()), "");
  EXPECT_EQ(checkpoints_in(folder.path()), Steps{});
}

}  // namespace
}  // namespace lockstep
