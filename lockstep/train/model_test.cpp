#include "lockstep/train/model.h"

#include <gtest/gtest.h>
#include <torch/data/dataloader.h>
#include <torch/data/datasets/base.h>
#include <torch/data/datasets/map.h>
#include <torch/data/samplers/sequential.h>
#include <torch/data/transforms/stack.h>

#include <map>
#include <string>
#include <vector>

#include "tests/support/fit_support.h"
#include "tests/support/same_bits.h"

namespace lockstep {
namespace {

/// The training that `fit` stands for, by hand.
struct ByHand {
  std::vector<double> losses, accuracies;
};
ByHand train_by_hand(Training& t, const data::Dataset<Batch>& dataset, int epochs) {
  ByHand result;
  const auto batches = t.strategy.distribute(dataset);
  for (int epoch = 0; epoch < epochs; ++epoch) {
    t.net.train();
    at::Tensor sums = torch::zeros({3}, torch::kDouble);
    for (const auto& batch : batches) {
      const auto mine = t.strategy.run(
          [&](const Batch& its) {
            const at::Tensor output = t.net->forward(its.rows);
            const at::Tensor losses = loss_per_row(output, its.labels);
            t.optimizer.minimize(average_loss(losses));
            const at::NoGradGuard no_grad;
            return torch::stack({losses.detach().sum(at::kDouble),
                                 output.argmax(1).eq(its.labels).sum().to(at::kDouble),
                                 torch::full({}, losses.size(0), torch::kDouble)});
          },
          batch);
      sums += t.strategy.reduce(ReduceOp::Sum, mine).to(sums.device());
    }
    result.losses.push_back((sums[0] / sums[2]).item<double>());
    result.accuracies.push_back((sums[1] / sums[2]).item<double>());
  }
  return result;
}

TEST(Fit, HasTheBitsOfTheLoopByHand) {
  for (const int replicas : {1, 2, 3, 4}) {
    Training by_hand(replicas);
    const ByHand expected = train_by_hand(by_hand, known_batches(), 3);
    Training by_fit(replicas);  // one replica draws from LibTorch's generator, which this seeds again
    const train::History history = by_fit.fit(known_batches(), {.epochs = 3, .validation = known_batches(17, 4)});
    EXPECT_EQ(first_difference(by_fit.weights(), by_hand.weights()), "") << replicas;
    ASSERT_EQ(history.epochs.size(), 3u);
    for (std::size_t epoch = 0; epoch < 3; ++epoch) {
      EXPECT_NEAR(history.of("loss")[epoch], expected.losses[epoch], 1e-12) << replicas;
      EXPECT_DOUBLE_EQ(history.of("accuracy")[epoch], expected.accuracies[epoch]) << replicas;
    }
    EXPECT_LT(history.last("loss"), history.of("loss")[0]);
  }
}

struct RowsOneByOne : torch::data::datasets::Dataset<RowsOneByOne> {
  explicit RowsOneByOne(Batch given) : all(std::move(given)) {}
  torch::data::Example<> get(std::size_t i) override {
    const auto k = static_cast<std::int64_t>(i);
    return {all.rows[k], all.labels[k]};
  }
  torch::optional<std::size_t> size() const override { return static_cast<std::size_t>(all.rows.size(0)); }

  Batch all;
};

TEST(Fit, TakesADistributedDatasetAndALoader) {
  Training by_dataset(2), by_distributed(2), by_loader(2);
  const Batch rows = known_rows(30);
  const auto dataset = data::from_tensor_slices(rows).batch(8);
  by_dataset.fit(dataset, {.epochs = 2});
  const auto distributed = by_distributed.strategy.distribute(dataset);
  by_distributed.model.fit(distributed, {.epochs = 2, .verbose = train::Verbose::Silent});
  EXPECT_EQ(first_difference(by_distributed.weights(), by_dataset.weights()), "");

  auto loader = torch::data::make_data_loader<torch::data::samplers::SequentialSampler>(
      RowsOneByOne(rows).map(torch::data::transforms::Stack<>()), 8);
  train::Batches batches(*loader);
  by_loader.model.fit(batches, {.epochs = 2, .verbose = train::Verbose::Silent});
  EXPECT_EQ(first_difference(by_loader.weights(), by_dataset.weights()), "");
}

TEST(Fit, StepsPerEpochContinueThePass) {
  Training by_pass(2), by_steps(2);
  by_pass.fit(known_batches(), {.epochs = 2});  // 6 steps each
  const train::History history = by_steps.fit(known_batches(), {.epochs = 3, .steps_per_epoch = 4});
  EXPECT_EQ(by_steps.optimizer.steps(), 12);
  EXPECT_EQ(history.epochs.size(), 3u);
  EXPECT_EQ(first_difference(by_steps.weights(), by_pass.weights()), "");
}

TEST(Fit, EndlessDataNeedsStepsPerEpoch) {
  Training t(1);
  const train::History history = t.fit(known_batches().repeat(), {.epochs = 2, .steps_per_epoch = 3});
  EXPECT_EQ(t.optimizer.steps(), 6);
  EXPECT_EQ(history.epochs.size(), 2u);
}

TEST(Fit, AScheduleSetsTheRateBeforeEachStep) {
  const CosineSchedule schedule{.base = 0.05, .warmup_steps = 3, .total_steps = 12};
  Training by_hand(2), by_fit(2);
  const auto batches = by_hand.strategy.distribute(known_batches());
  for (int epoch = 0; epoch < 2; ++epoch) {
    for (const auto& batch : batches) {
      by_hand.optimizer.set_learning_rate(schedule.rate(by_hand.optimizer.steps()));
      by_hand.strategy.run(
          [&](const Batch& mine) {
            by_hand.optimizer.minimize(average_loss(loss_per_row(by_hand.net->forward(mine.rows), mine.labels)));
          },
          batch);
    }
  }
  by_fit.fit(known_batches(), {.epochs = 2, .schedule = schedule});
  EXPECT_EQ(first_difference(by_fit.weights(), by_hand.weights()), "");
  EXPECT_DOUBLE_EQ(by_fit.optimizer.learning_rate(), schedule.rate(11));
}

TEST(Fit, AStepOfYourOwnLogsMeans) {
  Training by_default(2), by_step(2);
  by_default.fit(known_batches(), {.epochs = 2});
  by_step.model.set_train_step([&](const Batch& mine) {
    const at::Tensor losses = loss_per_row(by_step.net->forward(mine.rows), mine.labels);
    by_step.optimizer.minimize(average_loss(losses));
    return train::StepLogs{{"loss", losses.detach()}, {"rows", torch::full({1}, mine.rows.size(0), torch::kFloat)}};
  });
  const train::History history = by_step.fit(known_batches(), {.epochs = 2});
  EXPECT_EQ(first_difference(by_step.weights(), by_default.weights()), "");
  EXPECT_DOUBLE_EQ(history.last("rows"), 53.0 / (6 * 2)) << "the mean over 6 steps of 2 replicas";
  EXPECT_FALSE(history.epochs[0].contains("accuracy"));
}

TEST(Evaluate, CountsEveryRowOnceAndRestoresTheModes) {
  std::map<std::string, double> expected;
  for (const int replicas : {1, 2, 5}) {
    Training t(replicas);
    t.strategy.run([&] { t.net->drop->eval(); });  // kept as it is, as a frozen part is
    const Batch rows = known_rows(23);
    const train::Logs logs = t.model.evaluate(data::from_tensor_slices(rows).batch(7));
    EXPECT_TRUE(t.net->is_training());
    EXPECT_FALSE(t.net->drop->is_training());
    EXPECT_TRUE(t.net->second->is_training());
    t.net.eval();
    const at::NoGradGuard no_grad;
    const at::Tensor output = t.net->forward(here(rows.rows));
    EXPECT_NEAR(logs.at("loss"), loss_per_row(output, here(rows.labels)).mean().item<double>(), 1e-6) << replicas;
    EXPECT_NEAR(logs.at("accuracy"), output.argmax(1).eq(here(rows.labels)).to(at::kDouble).mean().item<double>(),
                1e-12);
    EXPECT_EQ(logs.size(), 2u);
    EXPECT_EQ(t.optimizer.steps(), 0);
  }
}

TEST(Evaluate, IsWhatValidationShows) {
  Training t(2);
  const train::History history = t.fit(known_batches(), {.epochs = 1, .validation = known_batches(17, 4)});
  const train::Logs logs = t.model.evaluate(known_batches(17, 4));
  EXPECT_NEAR(history.last("val_loss"), logs.at("loss"), 1e-12);
  EXPECT_DOUBLE_EQ(history.last("val_accuracy"), logs.at("accuracy"));
}

TEST(Predict, KeepsTheOrderOfRows) {
  for (const int replicas : {1, 3}) {
    Training t(replicas);
    const at::Tensor rows = known_rows(23).rows;
    t.net.eval();
    const at::Tensor predicted = t.model.predict(data::from_tensor_slices(rows).batch(7));
    const at::NoGradGuard no_grad;
    const at::Tensor expected = t.net->forward(here(rows)).cpu();
    ASSERT_EQ(predicted.sizes(), expected.sizes());
    EXPECT_LT(predicted.sub(expected).abs().max().item<double>(), 1e-5);
    EXPECT_FALSE(predicted.requires_grad());
    EXPECT_FALSE(t.net->is_training()) << "the mode before";
  }
}

TEST(TrainOnBatch, IsOneStep) {
  Training t(2);
  const Batch rows = known_rows(9);
  const train::Logs first = t.model.train_on_batch(rows);
  EXPECT_EQ(t.optimizer.steps(), 1);
  EXPECT_GT(first.at("loss"), 0);
  train::Logs last;
  for (int k = 0; k < 30; ++k) last = t.model.train_on_batch(rows);
  EXPECT_LT(last.at("loss"), first.at("loss"));
}

TEST(Summary, ListsLayersAndMemory) {
  Training t(2);
  const std::string text = t.model.summary();
  EXPECT_NE(text.find("first (torch::nn::LinearImpl)"), text.npos) << text;
  EXPECT_NE(text.find("weight [24, 9], bias [24]"), text.npos) << text;
  EXPECT_NE(text.find("Parameters: 345 (345 trainable)"), text.npos) << text;
  EXPECT_NE(text.find("1.35 KB of weights, 2.70 KB of gradients on 2 replicas"), text.npos) << text;
}

}  // namespace
}  // namespace lockstep
