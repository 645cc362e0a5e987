#include "lockstep/train/resume.h"

#include <gtest/gtest.h>

#include <optional>
#include <stdexcept>
#include <string>
#include <vector>

#include "lockstep/train/callbacks/checkpoints.h"
#include "lockstep/train/callbacks/loggers.h"
#include "lockstep/train/checkpoint/errors.h"
#include "tests/support/expect_error.h"
#include "tests/support/fit_support.h"
#include "tests/support/logged_lines.h"
#include "tests/support/same_bits.h"
#include "tests/support/temporary_folder.h"

namespace lockstep {
namespace {

using train::Decision;

constexpr int kEpochs = 3, kStepsOfAnEpoch = 6;

struct Killed : std::runtime_error {
  Killed() : std::runtime_error("killed") {}
};

/// Where a training ends with an exception, as if it were killed there: after a step, or in the moment of an epoch.
struct Kill {
  std::int64_t after_step = -1;
  int validation_begins = -1, validation_ends = -1, epoch_ends = -1;
};
struct KillAt : train::Callback {
  explicit KillAt(const Kill& kill) : at(kill) {}
  std::string name() const override { return "kill_at"; }
  static Decision killed(bool is_here) {
    if (is_here) throw Killed();
    return {};
  }
  Decision batch_ends(const train::Training& t) override { return killed(t.step == at.after_step); }
  Decision validation_begins(const train::Training& t) override { return killed(t.epoch == at.validation_begins); }
  Decision validation_ends(const train::Training& t, const train::Logs&) override {
    return killed(t.epoch == at.validation_ends);
  }
  Decision epoch_ends(const train::Training& t, const train::Logs&) override {
    return killed(t.epoch == at.epoch_ends);
  }
  Kill at;
};

/// Asks for a checkpoint in the moments of a mask, after which a training must be able to continue.
struct SaveIn : train::Callback {
  enum Moment { kBegin = 1, kEpoch = 2, kBatch = 4, kValidation = 8, kValidated = 16, kEpochEnd = 32, kEnd = 64 };
  explicit SaveIn(int given) : moments(given) {}
  std::string name() const override { return "save_in"; }
  bool decides_in_batches() const override { return true; }
  Decision save_in(Moment moment) const { return {.save = (moments & moment) != 0}; }
  Decision train_begins(const train::Training&) override { return save_in(kBegin); }
  Decision epoch_begins(const train::Training&) override { return save_in(kEpoch); }
  Decision batch_ends(const train::Training&) override { return save_in(kBatch); }
  Decision validation_begins(const train::Training&) override { return save_in(kValidation); }
  Decision validation_ends(const train::Training&, const train::Logs&) override { return save_in(kValidated); }
  Decision epoch_ends(const train::Training&, const train::Logs&) override { return save_in(kEpochEnd); }
  Decision train_ends(const train::Training&) override { return save_in(kEnd); }
  int moments;
};

/// What must not depend on whether a training was killed.
struct Outcome {
  std::vector<at::Tensor> weights;
  train::History history;
  std::int64_t steps = 0;
  double rate = 0;
  std::string csv;
};

/// One life of a training, in new objects.
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

void expect_same(const Outcome& seen, const Outcome& expected, const std::string& what) {
  EXPECT_EQ(first_difference(seen.weights, expected.weights), "") << what;
  EXPECT_EQ(seen.history.epochs, expected.history.epochs) << what;
  EXPECT_EQ(seen.history.stopped, expected.history.stopped) << what;
  EXPECT_EQ(seen.steps, expected.steps) << what;
  EXPECT_EQ(seen.rate, expected.rate) << what;
  EXPECT_EQ(seen.csv, expected.csv) << what;
}

Outcome uninterrupted(int replicas) {
  const TemporaryFolder folder;
  Life life(replicas, folder);
  return life.fit(life.options(0));
}

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

INSTANTIATE_TEST_SUITE_P(Replicas, ResumedOn, testing::Values(1, 2, 3));

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
  EXPECT_EQ(lines.count("callback \"early_stopping\" is not in the checkpoint and begins anew"), 1);
}

}  // namespace
}  // namespace lockstep
