#include "lockstep/train/resume.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <string>

#include "lockstep/train/checkpoint/errors.h"
#include "tests/support/expect_error.h"
#include "tests/support/lives.h"
#include "tests/support/logged_lines.h"

namespace lockstep {
namespace {

class ResumedOn : public testing::TestWithParam<int> {};

TEST_P(ResumedOn, ATrainingEndsWithTheSameBits) {
  const Outcome expected = uninterrupted(GetParam());
  const struct {
    const char* what;
    int save_in;
    Kill kill;
  } cases[] = {
      {"in the first step, without a checkpoint", SaveIn::kEpochEnd, {.after_step = 1}},
      {"in the first epoch, before the first checkpoint of a step", SaveIn::kBegin, {.after_step = 3}},
      {"from the beginning of an epoch", SaveIn::kEpoch, {.after_step = 8}},
      {"in an epoch", SaveIn::kBatch, {.after_step = 8}},
      {"after the last step of an epoch", SaveIn::kBatch, {.after_step = 6}},
      {"before validation, from the last step", SaveIn::kBatch, {.validation_begins = 1}},
      {"before validation", SaveIn::kValidation, {.validation_ends = 1}},
      {"after validation", SaveIn::kValidated, {.epoch_ends = 1}},
      {"in the next epoch, from the end of the last", SaveIn::kEpochEnd, {.after_step = 9}},
      {"in the last epoch, from anywhere", 127, {.after_step = 17}},
      {"at the very end", SaveIn::kValidated, {.epoch_ends = kEpochs - 1}},
  };
  for (const auto& each : cases) {
    const TemporaryFolder folder;
    {
      Life life(GetParam(), folder);
      EXPECT_ANY_THROW(life.fit(life.options(each.save_in, each.kill))) << each.what;
    }
    Life life(GetParam(), folder);
    expect_same(life.fit(life.options(each.save_in)), expected, each.what);
  }
}

TEST_P(ResumedOn, ATrainingThatIsKilledAfterEveryStepEndsWithTheSameBits) {
  const Outcome expected = uninterrupted(GetParam());
  const TemporaryFolder folder;
  for (std::int64_t step = 1; step <= kEpochs * kStepsOfAnEpoch; ++step) {
    Life life(GetParam(), folder);
    EXPECT_THROW(life.fit(life.options(SaveIn::kBatch, {.after_step = step + 1})), Killed) << step;
    EXPECT_EQ(life.training().optimizer.steps(), step + 1);
    if (step + 2 > kEpochs * kStepsOfAnEpoch) break;
  }
  Life life(GetParam(), folder);
  expect_same(life.fit(life.options(SaveIn::kBatch)), expected, "the last life");
}

INSTANTIATE_TEST_SUITE_P(Replicas, ResumedOn, testing::Values(1, 2));

TEST(Resume, OfAFinishedTrainingReturnsItsHistory) {
  const TemporaryFolder folder;
  Life first(2, folder), second(2, folder);
  const Outcome expected = first.fit(first.options(SaveIn::kEnd));
  expect_same(second.fit(second.options(SaveIn::kEnd)), expected, "nothing is left to do");
}

TEST(Resume, ContinuesWithMoreEpochs) {
  const TemporaryFolder folder, other;
  Life whole(2, other);
  auto options = whole.options(0);
  options.epochs = kEpochs + 1;
  const Outcome expected = whole.fit(options);
  Life first(2, folder), second(2, folder);
  first.fit(first.options(SaveIn::kEnd));
  options = second.options(SaveIn::kEnd);
  options.epochs = kEpochs + 1;
  expect_same(second.fit(options), expected, "one epoch more");
}

TEST(Resume, FromAnOlderCheckpointIfTheNewestIsDamaged) {
  const Outcome expected = uninterrupted(2);
  const TemporaryFolder folder;
  Life first(2, folder), second(2, folder);
  EXPECT_THROW(first.fit(first.options(SaveIn::kBatch, {.after_step = 8})), Killed);
  const std::string newest = train::list_checkpoints(folder / "checkpoints").back().path;
  std::filesystem::resize_file(newest + "/optimizer.safetensors", 100);
  const LoggedLines lines;
  expect_same(second.fit(second.options(SaveIn::kBatch)), expected, "from the step before");
  EXPECT_EQ(lines.count(newest + " is not used: optimizer.safetensors has 100 bytes, "), 1);
}

TEST(Resume, AfterAnotherSeedTheRowsAreThoseOfTheInterruptedTraining) {
  const Outcome expected = uninterrupted(2);
  for (const std::int64_t step : {3, 8}) {  // before and after the first validation
    const TemporaryFolder folder;
    Life first(2, folder), second(2, folder);
    EXPECT_THROW(first.fit(first.options(SaveIn::kBatch, {.after_step = step})), Killed);
    second.training().strategy.set_seed(99);
    expect_same(second.fit(second.options(SaveIn::kBatch)), expected, "killed after step " + std::to_string(step));
  }
}

TEST(Resume, StepsPerEpochContinueTheirPass) {
  const auto options = [](const TemporaryFolder& folder, const Kill& kill) {
    return train::FitOptions<Batch>{
        .epochs = 4,
        .steps_per_epoch = 4,
        .callbacks = {train::model_checkpoint({.folder = folder.path()}), std::make_shared<KillAt>(kill)},
        .resume = true};
  };
  const TemporaryFolder folder, other;
  Training whole(2), first(2), second(2);
  const train::History expected = whole.fit(known_batches(), options(other, {}));
  EXPECT_THROW(first.fit(known_batches(), options(folder, {.after_step = 10})), Killed);
  EXPECT_EQ(second.fit(known_batches(), options(folder, {})).epochs, expected.epochs);
  EXPECT_EQ(first_difference(second.weights(), whole.weights()), "");
}

TEST(Resume, FromTheFolderOfAnotherTraining) {
  const TemporaryFolder folder, other;
  Life first(2, folder), second(2, other), third(2, other), fourth(2, other);
  const Outcome expected = first.fit(first.options(SaveIn::kBatch));
  auto options = second.options(0);
  options.resume = folder / "checkpoints";
  EXPECT_EQ(second.fit(options).history.epochs, expected.history.epochs);
  options = third.options(0);
  options.resume = (folder / "checkpoints") + "/step-000000000017";
  EXPECT_EQ(third.fit(options).history.epochs, expected.history.epochs);
  options = fourth.options(0);
  options.resume = other / "nothing";
  expect_error([&] { fourth.fit(options); }, Code::NotFound, errors::kCheckpoint, {"there is no checkpoint to resume"});
}

TEST(Resume, OnAnotherNumberOfReplicasIsRefusedAndNamesTheRightOne) {
  const TemporaryFolder folder;
  Life first(2, folder), second(3, folder);
  EXPECT_THROW(first.fit(first.options(SaveIn::kBatch, {.after_step = 8})), Killed);
  expect_error([&] { second.fit(second.options(SaveIn::kBatch)); }, Code::FailedPrecondition, errors::kCheckpoint,
               {"the training was begun on 2 replicas and cannot continue on 3", ".devices = ls::cpus(2)"});
  EXPECT_EQ(second.training().optimizer.steps(), 0);
}

TEST(Resume, TheProgramsOwnParts) {
  struct Counter : Stateful {
    void capture(Snapshot& into, const std::string& name) const override { into.texts[name] = std::to_string(count); }
    void restore(const Snapshot& from, const std::string& name) override { count = std::stoi(from.texts.at(name)); }
    int count = 0;
  };
  const TemporaryFolder folder;
  Counter first, second;
  first.count = 7;
  Life one(1, folder), two(1, folder);
  auto options = one.options(SaveIn::kEnd);
  options.parts = {{"counter", first}};
  one.fit(options);
  options = two.options(0);
  options.parts = {{"counter", second}};
  two.fit(options);
  EXPECT_EQ(second.count, 7);
}

TEST(Resume, NeedsSomethingToResumeFrom) {
  Training t(1);
  expect_error([&] { t.fit(known_batches(), {.resume = true}); }, Code::InvalidArgument, errors::kBadOption,
               {"resume = true needs a callback that writes checkpoints", "model_checkpoint"});
}

/// The position in these cannot be saved.
data::Dataset<Batch> unordered() {
  return known_batches().map([](const Batch& batch) { return batch; }, {.parallel_calls = 2, .ordered = false});
}

TEST(Resume, RefusesDataWithoutAPositionWhenFitBegins) {
  const TemporaryFolder folder;
  Life life(2, folder);
  const auto expect_refused = [&](const data::Dataset<Batch>& batches, const train::FitOptions<Batch>& options) {
    expect_error([&] { life.training().fit(batches, options); }, Code::FailedPrecondition, errors::kCheckpoint,
                 {"needs data whose position can be saved", "inexact_resume = true"});
    EXPECT_EQ(life.training().optimizer.steps(), 0);
  };
  expect_refused(unordered(), life.options(0));
  auto options = life.options(0);
  options.validation = unordered();
  expect_refused(known_batches(), options);
  options.callbacks.clear();
  options.resume = false;
  life.training().fit(unordered(), options);  // without checkpoints it is nobody's concern
}

TEST(Resume, AcceptsSuchDataWhereTheProgramDoes) {
  const TemporaryFolder folder;
  const auto inexact = [](Life& life, const Kill& kill) {
    auto options = life.options(SaveIn::kBatch, kill);
    options.inexact_resume = true;
    return options;
  };
  Life first(2, folder), second(2, folder);
  EXPECT_THROW(first.training().fit(unordered(), inexact(first, {.after_step = 9})), Killed);
  EXPECT_EQ(second.training().fit(unordered(), inexact(second, {})).epochs.size(), kEpochs);
  EXPECT_EQ(second.training().optimizer.steps(), kEpochs * kStepsOfAnEpoch);
}

TEST(Resume, SaysWhichCallbacksAreNew) {
  const TemporaryFolder folder;
  Life first(1, folder), second(1, folder);
  first.fit(first.options(SaveIn::kEnd));
  auto options = second.options(0);
  options.callbacks.push_back(train::early_stopping());
  LoggedLines lines;
  second.fit(options);
  EXPECT_EQ(lines.count("callback \"early_stopping\" is not in the checkpoint: it starts from scratch"), 1);
}

}  // namespace
}  // namespace lockstep
