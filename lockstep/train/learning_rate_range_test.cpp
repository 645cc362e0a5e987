#include "lockstep/train/learning_rate_range.h"

#include <gtest/gtest.h>
#include <torch/optim/sgd.h>

#include <cmath>
#include <optional>
#include <stdexcept>
#include <string>

#include "tests/support/expect_error.h"
#include "tests/support/fit_support.h"
#include "tests/support/same_bits.h"

namespace lockstep {
namespace {

TEST(FindLearningRate, PutsEverythingBack) {
  Training plain(2), tested(2);
  plain.fit(known_batches(), {.epochs = 1});
  tested.fit(known_batches(), {.epochs = 1});
  const auto range = train::find_learning_rate(tested.model, known_batches(), {.from = 1e-5, .to = 10, .steps = 30});
  EXPECT_GT(range.points.size(), 5u);
  EXPECT_EQ(first_difference(tested.weights(), plain.weights()), "");
  EXPECT_EQ(tested.optimizer.learning_rate(), 0.01);
  EXPECT_EQ(tested.optimizer.steps(), plain.optimizer.steps());
  const auto expected = plain.fit(known_batches(), {.epochs = 2}), seen = tested.fit(known_batches(), {.epochs = 2});
  EXPECT_EQ(seen.epochs, expected.epochs) << "dropout and the order of rows are those of a training without the test";
  EXPECT_EQ(first_difference(tested.weights(), plain.weights()), "");
}

TEST(FindLearningRate, SuggestsWhereTheLossFallsFastest) {
  Training t(1, /*dropout=*/0);
  const auto range = train::find_learning_rate(t.model, known_batches(), {.from = 1e-5, .to = 100, .steps = 60});
  ASSERT_TRUE(range.suggestion.has_value());
  EXPECT_GT(*range.suggestion, 1e-4);
  EXPECT_LT(*range.suggestion, 1);
  EXPECT_LT(range.points.size(), 60u) << "it ends where the loss explodes";
  EXPECT_DOUBLE_EQ(range.points[0].rate, 1e-5);
  EXPECT_NEAR(range.points[1].rate / range.points[0].rate, std::pow(1e7, 1.0 / 59), 1e-9);
  const std::string svg = range.svg();
  EXPECT_NE(svg.find("Falls fastest at a learning rate of "), svg.npos);
  EXPECT_NE(svg.find("smoothed"), svg.npos);
  for (const char* mark : {">0.0001<", ">0.01<", ">1<"})
    EXPECT_NE(svg.find(mark), svg.npos) << "the axis of rates is logarithmic:\n" << svg;
}

TEST(FindLearningRate, AStepIsAWholeWindowOfAccumulation) {
  const auto range_of = [](int batch, std::optional<int> accumulate) {
    Training t(2);
    const auto net = t.strategy.make<Net>(24, 0.0);
    const auto optimizer = t.strategy.make_optimizer<torch::optim::SGD>(net, torch::optim::SGDOptions(0.01));
    train::Model model(net, optimizer, {.loss = train::losses::cross_entropy(), .accumulate = accumulate});
    return train::find_learning_rate(model, known_batches(60, batch),
                                     {.from = 1e-2, .to = 0.3, .steps = 10, .stop_at = 0});
  };
  const auto whole = range_of(20, std::nullopt), windows = range_of(10, 2);
  ASSERT_EQ(whole.points.size(), 10u);
  ASSERT_EQ(windows.points.size(), 10u);
  for (std::size_t i = 0; i < 10; ++i) {
    EXPECT_EQ(windows.points[i].rate, whole.points[i].rate) << i;
    EXPECT_NEAR(windows.points[i].loss, whole.points[i].loss, 1e-4) << i;
  }
}

TEST(FindLearningRate, HasNoSuggestionWhereTheLossDoesNotFall) {
  Training t(1);
  t.model.set_train_step([](const Batch& mine) {
    return train::StepLogs{{"error", torch::ones({mine.rows.size(0)})}};
  });
  const auto range = train::find_learning_rate(t.model, known_batches(), {.steps = 10, .monitor = "error"});
  EXPECT_EQ(range.points.size(), 10u);
  EXPECT_EQ(range.suggestion, std::nullopt);
  EXPECT_NE(range.svg().find("The loss does not fall"), std::string::npos);
}

TEST(FindLearningRate, PutsEverythingBackAfterAFailure) {
  Training t(1), untouched(1);
  int steps = 0;
  t.model.set_train_step([&](const Batch& mine) {
    if (++steps == 4) throw std::runtime_error("no fourth step");
    const at::Tensor losses = loss_per_row(t.net->forward(mine.rows), mine.labels);
    t.optimizer.minimize(average_loss(losses));
    return train::StepLogs{{"loss", losses.detach()}};
  });
  EXPECT_ANY_THROW(train::find_learning_rate(t.model, known_batches()));
  EXPECT_EQ(first_difference(t.weights(), untouched.weights()), "");
  EXPECT_EQ(t.optimizer.steps(), 0);
}

TEST(FindLearningRate, WantsSensibleOptions) {
  Training t(1);
  const auto with = [&](const train::LearningRateRangeOptions& options) {
    return [&t, options] { train::find_learning_rate(t.model, known_batches(), options); };
  };
  expect_error(with({.from = 1, .to = 0.1}), Code::InvalidArgument, errors::kBadOption,
               {"`from` must be > 0 and < `to`, got 1 and 0.1"});
  expect_error(with({.steps = 2}), Code::InvalidArgument, errors::kBadOption, {"`steps` must be >= 5, got 2"});
  expect_error(with({.stop_at = 0.5}), Code::InvalidArgument, errors::kBadOption, {"`stop_at` must be > 1"});
  expect_error(with({.smoothing = 1}), Code::InvalidArgument, errors::kBadOption, {"`smoothing` must be"});
  expect_error(with({.monitor = "lost"}), Code::InvalidArgument, errors::kBadOption, {"monitors \"lost\""});
}

}  // namespace
}  // namespace lockstep
