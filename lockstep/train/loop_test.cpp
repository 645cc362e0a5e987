#include "lockstep/train/loop.h"

#include <gtest/gtest.h>

#include <sstream>
#include <string>
#include <vector>

#include "lockstep/train/callbacks.h"
#include "tests/support/expect_error.h"
#include "tests/support/fit_support.h"
#include "tests/support/same_bits.h"

namespace lockstep {
namespace {

TEST(Loop, OfYourOwnHasTheBitsOfFit) {
  Training by_fit(2), by_loop(2);
  const train::History expected = by_fit.fit(known_batches(), {.epochs = 2, .validation = known_batches(9, 4)});
  train::Loop loop(by_loop.strategy, {.epochs = 2,
                                      .metrics = {train::metrics::accuracy()},
                                      .optimizers = {by_loop.optimizer},
                                      .verbose = train::Verbose::Silent});
  const train::Batches batches(known_batches());
  const train::Batches held_out(known_batches(9, 4));
  while (loop.next_epoch()) {
    by_loop.net.train();
    for (const auto& batch : loop.steps(batches)) {
      by_loop.strategy.run(
          [&](const Batch& mine) {
            const at::Tensor output = by_loop.net->forward(mine.rows);
            const at::Tensor losses = loss_per_row(output, mine.labels);
            by_loop.optimizer.minimize(average_loss(losses));
            loop.meters().add(output, mine.labels);
            loop.meters().add_mean("loss", losses);
          },
          batch);
    }
    by_loop.net.eval();
    for (const auto& batch : loop.validation_steps(held_out)) {
      by_loop.strategy.run(
          [&](const Batch& mine) {
            const at::NoGradGuard no_grad;
            const at::Tensor output = by_loop.net->forward(mine.rows);
            loop.meters().add(output, mine.labels);
            loop.meters().add_mean("loss", loss_per_row(output, mine.labels));
          },
          batch);
    }
  }
  EXPECT_EQ(first_difference(by_loop.weights(), by_fit.weights()), "");
  EXPECT_EQ(loop.history().epochs, expected.epochs);
  EXPECT_FALSE(loop.next_epoch()) << "it has ended";
}

TEST(Loop, CallbacksSeeTheMomentsInOrder) {
  struct Notes : train::Callback {
    std::string name() const override { return "notes"; }
    train::Decision note(const std::string& what) {
      seen += what + " ";
      return {};
    }
    train::Decision train_begins(const train::Training&) override { return note("begin"); }
    train::Decision epoch_begins(const train::Training& t) override { return note("epoch" + std::to_string(t.epoch)); }
    train::Decision batch_ends(const train::Training& t) override {
      EXPECT_EQ(t.batches, 3);
      EXPECT_TRUE(t.running_logs().contains("loss"));
      return note(std::to_string(t.step) + ":" + std::to_string(t.rows));
    }
    train::Decision validation_begins(const train::Training&) override { return note("val"); }
    train::Decision validation_ends(const train::Training&, const train::Logs& logs) override {
      EXPECT_TRUE(logs.contains("val_loss"));
      EXPECT_FALSE(logs.contains("loss"));
      return note("val_end");
    }
    train::Decision epoch_ends(const train::Training&, const train::Logs& logs) override {
      EXPECT_EQ(logs.size(), 4u);
      seen += "end ";
      return {.save = true};
    }
    void save(const train::Training&) override { note("save"); }
    train::Decision train_ends(const train::Training&) override { return note("done"); }
    std::string seen;
  };
  auto notes = std::make_shared<Notes>();
  Training t(2);
  t.fit(known_batches(11, 4), {.epochs = 2, .validation = known_batches(5, 4), .callbacks = {notes}});
  EXPECT_EQ(notes->seen,
            "begin epoch0 1:4 2:8 3:11 val val_end end save epoch1 4:4 5:8 6:11 val val_end end save done ");
}

TEST(Loop, PrintsSelfContainedLinesIntoAPipe) {
  Training t(2);
  std::ostringstream out;
  t.fit(known_batches(), {.epochs = 2, .validation = known_batches(9, 4), .out = &out});
  std::istringstream lines(out.str());
  int count = 0;
  for (std::string line; std::getline(lines, line); ++count) {
    EXPECT_EQ(line.substr(0, 6), "Epoch ") << line;
    EXPECT_NE(line.find("/step - accuracy: "), line.npos) << line;
  }
  EXPECT_EQ(count, 2) << "one for a fast epoch:\n" << out.str();
  EXPECT_NE(out.str().find("Epoch 2/2: 6/6 (100%) "), std::string::npos) << out.str();
  EXPECT_NE(out.str().find(" - val_accuracy: "), std::string::npos);
}

TEST(Loop, ABreakEndsThePass) {
  Training t(1);
  train::Loop loop(t.strategy, {.epochs = 2, .verbose = train::Verbose::Silent});
  const train::Batches batches(known_batches());
  int steps = 0;
  while (loop.next_epoch()) {
    for (const auto& batch : loop.steps(batches)) {
      t.strategy.run([&](const Batch& mine) { loop.meters().add_mean("rows", mine.rows); }, batch);
      if (++steps % 2 == 0) break;
    }
  }
  EXPECT_EQ(steps, 4);
  EXPECT_EQ(loop.history().epochs.size(), 2u);
  EXPECT_TRUE(loop.history().epochs[1].contains("rows"));
}

TEST(Loop, StepsOutsideOfAnEpochAreRefused) {
  Training t(1);
  train::Loop loop(t.strategy, {.epochs = 1, .verbose = train::Verbose::Silent});
  const train::Batches batches(known_batches());
  expect_error([&] { loop.steps(batches); }, Code::FailedPrecondition, errors::kWrongContext, {"next_epoch"});
}

TEST(Loop, InitialEpochCountsTheEpochsBefore) {
  Training t(1);
  std::vector<int> seen;
  const train::History history =
      t.fit(known_batches(), {.epochs = 5,
                              .callbacks = {train::lambda({.epoch_begins =
                                                               [&](const train::Training& its) {
                                                                 seen.push_back(its.epoch);
                                                                 return train::Decision{};
                                                               }})},
                              .initial_epoch = 3});
  EXPECT_EQ(seen, (std::vector<int>{3, 4}));
  EXPECT_EQ(history.first_epoch, 3);
  EXPECT_EQ(t.fit(known_batches(), {.epochs = 0}).epochs.size(), 0u);
}

}  // namespace
}  // namespace lockstep
