#include "lockstep/train/callbacks/ema.h"

#include <ATen/ops/lerp.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <memory>
#include <string>
#include <vector>

#include "tests/support/expect_error.h"
#include "tests/support/fit_support.h"
#include "tests/support/lives.h"
#include "tests/support/same_bits.h"

namespace lockstep {
namespace {

using Tensors = std::vector<at::Tensor>;

train::ModelOptions usual_options() {
  return {.loss = train::losses::cross_entropy(), .metrics = {train::metrics::accuracy()}};
}

Tensors averages_of(Training& t, train::Ema& averages) {
  averages.swap();
  Tensors values = t.weights();
  averages.swap();
  return values;
}

/// Averages by the formula, after each update of the optimizer.
train::CallbackPtr by_the_formula(Training& t, Tensors& averages, double decay, bool warm_up = false) {
  const auto follow = [&t, &averages, decay, warm_up, seen = std::int64_t{0}](const train::Training&) mutable {
    if (t.optimizer.steps() == seen) return train::Decision{};
    const auto n = static_cast<double>(seen = t.optimizer.steps());
    const double kept = warm_up ? std::min(decay, (1 + n) / (10 + n)) : decay;
    const Tensors weights = t.weights();
    for (std::size_t i = 0; i < weights.size(); ++i) averages[i] = at::lerp(averages[i], weights[i], 1 - kept);
    return train::Decision{};
  };
  return train::lambda({.batch_ends = follow});
}

TEST(Ema, FollowsTheWeights) {
  for (const bool warm_up : {false, true}) {
    for (const int replicas : {1, 2}) {
      Training t(replicas);
      Tensors expected = t.weights();
      const auto averages = train::ema(t.net, {.decay = 0.8, .warm_up = warm_up});
      t.fit(known_batches(), {.epochs = 2, .callbacks = {averages, by_the_formula(t, expected, 0.8, warm_up)}});
      EXPECT_EQ(averages->updates(), 12);
      EXPECT_EQ(first_difference(averages_of(t, *averages), expected), "") << replicas;
      EXPECT_NE(first_difference(t.weights(), expected), "");
    }
  }
}

TEST(Ema, ChangesNothingOfTheTraining) {
  Training with(2);
  const auto averages = train::ema(with.net, {.decay = 0.9});
  const train::History seen =
      with.fit(known_batches(), {.epochs = 2, .validation = known_batches(17, 4), .callbacks = {averages}});
  Training without(2);
  const train::History expected = without.fit(known_batches(), {.epochs = 2, .validation = known_batches(17, 4)});
  EXPECT_EQ(first_difference(with.weights(), without.weights()), "");
  EXPECT_EQ(seen.of("loss"), expected.of("loss"));
  EXPECT_NE(seen.of("val_loss"), expected.of("val_loss")) << "validation sees the averages";
}

TEST(Ema, ValidationSeesTheAverages) {
  for (const bool validation : {true, false}) {
    Training t(2);
    const auto averages = train::ema(t.net, {.decay = 0.9, .validation = validation});
    const train::History history =
        t.fit(known_batches(), {.epochs = 1, .validation = known_batches(17, 4), .callbacks = {averages}});
    EXPECT_FALSE(averages->is_swapped());
    if (validation) averages->swap();
    EXPECT_NEAR(t.model.evaluate(known_batches(17, 4)).at("loss"), history.last("val_loss"), 1e-12);
  }
}

TEST(Ema, CountsAppliedUpdatesAlone) {
  Training t(2);
  Tensors expected = t.weights();
  const auto averages = train::ema(t.net, {.decay = 0.8});
  auto options = usual_options();
  options.accumulate = 4;  // of six steps: windows of four and two
  std::vector<std::int64_t> seen;
  const auto note = [&](const train::Training&, const train::Logs&) {
    seen.push_back(averages->updates());
    return train::Decision{};
  };
  train::Model(t.net, t.optimizer, options)
      .fit(known_batches(), {.epochs = 2,
                             .callbacks = {averages, train::lambda({.epoch_ends = note})},
                             .verbose = train::Verbose::Silent});
  EXPECT_EQ(t.optimizer.steps(), 4);
  EXPECT_EQ(seen, (std::vector<std::int64_t>{2, 4}));
}

TEST(Ema, KeepsTheAveragesAtTheEnd) {
  Training t(2), other(2);
  const auto kept = train::ema(t.net, {.decay = 0.9, .keep = true});
  t.fit(known_batches(), {.epochs = 2, .callbacks = {kept}});
  const auto averages = train::ema(other.net, {.decay = 0.9});
  other.fit(known_batches(), {.epochs = 2, .callbacks = {averages}});
  EXPECT_EQ(first_difference(t.weights(), averages_of(other, *averages)), "");
}

TEST(Ema, AValidationThatFailsLeavesTheWeights) {
  Training t(2);
  Tensors trained;
  const auto note = [&](const train::Training&) {
    trained = t.weights();
    return train::Decision{};
  };
  auto options = usual_options();
  options.loss = [&](const at::Tensor& output, const at::Tensor& target) {
    if (!at::GradMode::is_enabled()) throw std::runtime_error("no loss today");
    return loss_per_row(output, target);
  };
  EXPECT_THROW(
      train::Model(t.net, t.optimizer, options)
          .fit(known_batches(), {.validation = known_batches(17, 4),
                                 .callbacks = {train::ema(t.net, {.decay = 0.9}), train::lambda({.batch_ends = note})},
                                 .verbose = train::Verbose::Silent}),
      std::runtime_error);
  EXPECT_EQ(first_difference(t.weights(), trained), "");
}

TEST(Ema, ResumesWithTheSameBits) {
  struct Seen {
    Tensors weights, averages;
    train::History history;
  };
  const auto fit = [](const TemporaryFolder& folder, int save_in, const Kill& kill) {
    Life life(2, folder);
    Training& t = life.training();
    const auto averages = train::ema(t.net, {.decay = 0.9});
    auto options = life.options(save_in, kill);
    options.callbacks.insert(options.callbacks.begin(), averages);
    Seen seen{.history = t.fit(known_batches(), options)};
    seen.weights = t.weights();
    seen.averages = averages_of(t, *averages);
    return seen;
  };
  const TemporaryFolder other;
  const Seen expected = fit(other, 0, {});
  const struct {
    int save_in;
    Kill kill;
  } cases[] = {
      {SaveIn::kBatch, {.after_step = 8}},           {SaveIn::kBatch, {.validation_begins = 1}},
      {SaveIn::kValidation, {.validation_ends = 1}}, {SaveIn::kValidated, {.epoch_ends = 1}},
      {SaveIn::kEpochEnd, {.after_step = 9}},        {127, {.after_step = 17}},
  };
  for (const auto& each : cases) {
    const TemporaryFolder folder;
    EXPECT_THROW(fit(folder, each.save_in, each.kill), Killed);
    const Seen seen = fit(folder, each.save_in, {});
    EXPECT_EQ(first_difference(seen.weights, expected.weights), "") << each.save_in;
    EXPECT_EQ(first_difference(seen.averages, expected.averages), "") << each.save_in;
    EXPECT_EQ(seen.history.epochs, expected.history.epochs) << each.save_in;
  }
}

TEST(Ema, OfAnotherModelIsRefused) {
  const TemporaryFolder folder;
  const auto fit = [&](std::int64_t hidden) {
    Training t(1);
    auto averaged = t.strategy.make<Net>(hidden);
    t.fit(known_batches(),
          {.callbacks = {train::ema(averaged), train::model_checkpoint({.folder = folder.path()})}, .resume = true});
  };
  fit(8);
  expect_error([&] { fit(9); }, Code::InvalidArgument, errors::kSavedState,
               {"averages/first.weight", "float32[8, 9]", "float32[9, 9]"});
}

TEST(Ema, OneOfAModelIsSwappedInAtATime) {
  Training t(2);
  auto fast = train::ema(t.net, {.decay = 0.5, .validation = false, .name = "fast"});
  const auto slow = train::ema(t.net, {.decay = 0.9, .name = "slow"});
  t.fit(known_batches(), {.epochs = 1, .validation = known_batches(17, 4), .callbacks = {fast, slow}});
  const Tensors trained = t.weights();
  fast->swap();
  const Tensors averages = t.weights();
  expect_error([&] { slow->swap(); }, Code::FailedPrecondition, errors::kWrongContext,
               {"ema \"slow\" cannot swap", "averages of ema \"fast\"", "set .validation = false on all but one"});
  EXPECT_FALSE(slow->is_swapped());
  EXPECT_EQ(first_difference(t.weights(), averages), "");
  fast->swap();
  EXPECT_EQ(first_difference(t.weights(), trained), "");
  slow->swap();
  slow->swap();
  EXPECT_EQ(first_difference(t.weights(), trained), "");
  fast->swap();
  fast.reset();  // the model keeps its averages
  slow->swap();
  slow->swap();
  EXPECT_EQ(first_difference(t.weights(), averages), "");
}

TEST(Ema, OneOfAModelIsForValidation) {
  Training t(2), other(2);
  const Tensors untrained = t.weights();
  const auto fast = train::ema(t.net, {.decay = 0.5, .name = "fast"});
  const auto slow = train::ema(t.net, {.decay = 0.9, .name = "slow"});
  expect_error(
      [&] {
        t.fit(known_batches(), {.validation = known_batches(17, 4), .callbacks = {fast, slow}});
      },
      Code::FailedPrecondition, errors::kBadOption,
      {"got \"fast\" and \"slow\"", "set .validation = false on all but one"});
  EXPECT_EQ(first_difference(t.weights(), untrained), "") << "before the first step";
  t.fit(known_batches(), {.callbacks = {fast, slow}});
  EXPECT_EQ(fast->updates(), 6) << "without validation they may be two";
  const auto of_other = train::ema(other.net, {.name = "of_other"});
  t.fit(known_batches(), {.validation = known_batches(17, 4), .callbacks = {fast, of_other}});
}

TEST(Ema, NamesHaveNoSlash) {
  Training t(1);
  for (const char* const name : {"", "ema/x"}) {
    expect_error([&] { train::ema(t.net, {.name = name}); }, Code::InvalidArgument, errors::kBadOption,
                 {"name must not be empty or contain '/'"});
  }
}

TEST(Ema, NeedsADecayBelowOne) {
  Training t(1);
  for (const double decay : {-0.1, 1.0, 1.5}) {
    expect_error([&] { train::ema(t.net, {.decay = decay}); }, Code::InvalidArgument, errors::kBadOption,
                 {"decay must be >= 0 and < 1"});
  }
}

}  // namespace
}  // namespace lockstep
