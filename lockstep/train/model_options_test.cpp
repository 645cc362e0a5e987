#include <gtest/gtest.h>
#include <torch/nn/modules/conv.h>
#include <torch/nn/modules/linear.h>
#include <torch/optim/adam.h>

#include <algorithm>
#include <functional>
#include <limits>
#include <memory>
#include <string>
#include <vector>

#include "lockstep/nn/grad_scaler.h"
#include "lockstep/train/callbacks/checkpoints.h"
#include "tests/support/expect_error.h"
#include "tests/support/fit_support.h"
#include "tests/support/lives.h"
#include "tests/support/logged_lines.h"
#include "tests/support/same_bits.h"
#include "tests/support/temporary_folder.h"

// Options of a Model that stand for code: with each of them `fit` has the bits of the loop by hand.
namespace lockstep {
namespace {

constexpr int kEpochsHere = 2;

train::ModelOptions with_loss(train::ModelOptions options) {
  options.loss = train::losses::cross_entropy();
  options.metrics = {train::metrics::accuracy()};
  return options;
}

std::vector<at::Tensor> weights_by_fit(Training& t, const train::ModelOptions& options) {
  train::Model(t.net, t.optimizer, with_loss(options))
      .fit(known_batches(), {.epochs = kEpochsHere, .verbose = train::Verbose::Silent});
  return t.weights();
}

/// Six batches in an epoch, the last one short. `end_window` runs on every replica where an epoch ends in a window.
std::vector<at::Tensor> weights_by_hand(Training& t, int window, GradScaler* scaler,
                                        const std::function<void()>& end_window) {
  const auto batches = t.strategy.distribute(known_batches());
  for (int epoch = 0; epoch < kEpochsHere; ++epoch) {
    t.net.train();
    int steps = 0;
    for (const auto& batch : batches) {
      std::int64_t rows = 0;
      for (const Batch& part : batch) rows += part.rows.size(0);
      t.strategy.run(
          [&](const Batch& mine) {
            const at::Tensor loss = average_loss(loss_per_row(t.net->forward(mine.rows), mine.labels), window * rows);
            if (scaler != nullptr)
              t.optimizer.minimize(loss, *scaler);
            else
              t.optimizer.minimize(loss);
          },
          batch);
      ++steps;
    }
    if (steps % window != 0) t.strategy.run(end_window);
  }
  return t.weights();
}

TEST(ModelOptions, AccumulationHasTheBitsOfTheLoopByHand) {
  for (const int replicas : {1, 2, 3}) {
    for (const int window : {2, 4}) {
      Training by_hand(replicas);
      by_hand.optimizer.set_accumulate(window);
      const auto expected = weights_by_hand(by_hand, window, nullptr, [&] {
        by_hand.optimizer.reduce_gradients();
        by_hand.optimizer.step();
      });
      Training by_fit(replicas);
      EXPECT_EQ(first_difference(weights_by_fit(by_fit, {.accumulate = window}), expected), "") << replicas;
      EXPECT_EQ(by_fit.optimizer.steps(), kEpochsHere * (window == 2 ? 3 : 2)) << "the end of an epoch ends a window";
    }
  }
}

TEST(ModelOptions, AccumulationWithAScalerAndClippingHasTheBitsOfTheLoopByHand) {
  Training by_hand(2);
  GradScaler scaler_by_hand(by_hand.strategy);
  by_hand.optimizer.set_accumulate(4);
  by_hand.optimizer.set_clip_global_norm(0.05);
  by_hand.optimizer.set_clip_value(0.01);
  const auto expected = weights_by_hand(by_hand, 4, &scaler_by_hand, [&] {
    by_hand.optimizer.reduce_gradients();
    if (!by_hand.optimizer.unscale(scaler_by_hand)) return;
    by_hand.optimizer.clip_global_norm(0.05);
    by_hand.optimizer.clip_value(0.01);
    by_hand.optimizer.step();
  });
  Training by_fit(2), unclipped(2);
  GradScaler scaler_by_fit(by_fit.strategy);
  const auto seen =
      weights_by_fit(by_fit, {.scaler = &scaler_by_fit, .accumulate = 4, .clip_norm = 0.05, .clip_value = 0.01});
  EXPECT_EQ(first_difference(seen, expected), "");
  EXPECT_NE(first_difference(weights_by_fit(unclipped, {.accumulate = 4}), expected), "");
}

TEST(ModelOptions, AStepOfYourOwnTakesNoOptionsOfTheDefaultStep) {
  Training t(2);
  GradScaler scaler(t.strategy);
  const struct {
    train::ModelOptions options;
    std::vector<std::string> fragments;
  } table[] = {
      {{.autocast = at::kBFloat16}, {"does not use .autocast", "ls::Autocast"}},
      {{.scaler = &scaler}, {"does not use .scaler", "optimizer.minimize(loss, scaler)"}},
      {{.accumulate = 4}, {"does not use .accumulate", "optimizer.set_accumulate(4)"}},
      {{.channels_last = true}, {"does not use .channels_last", "at::MemoryFormat::ChannelsLast"}},
  };
  for (const auto& row : table) {
    train::Model model(t.net, t.optimizer, with_loss(row.options));
    int steps = 0;
    model.set_train_step([&](const Batch&) { ++steps; });
    expect_error([&] { model.fit(known_batches(), {.verbose = train::Verbose::Silent}); }, Code::InvalidArgument,
                 errors::kBadOption, row.fragments);
    expect_error([&] { model.train_on_batch(known_rows(9)); }, Code::InvalidArgument, errors::kBadOption,
                 row.fragments);
    EXPECT_EQ(steps, 0);
  }
  train::Model model(t.net, t.optimizer, with_loss({.accumulate = 1, .clip_norm = 1}));
  model.set_train_step([](const Batch& mine) { return train::StepLogs{{"rows", mine.rows}}; });
  EXPECT_EQ(model.train_on_batch(known_rows(9)).count("rows"), 1u);
}

TEST(ModelOptions, ClippingHasTheBitsOfTheSettingsByHand) {
  const struct {
    train::ModelOptions options;
    std::function<void(Training&)> set;
  } table[] = {
      {{.clip_norm = 0.3}, [](Training& t) { t.optimizer.set_clip_global_norm(0.3); }},
      {{.clip_value = 0.01}, [](Training& t) { t.optimizer.set_clip_value(0.01); }},
  };
  for (const auto& row : table) {
    Training by_hand(2);
    row.set(by_hand);
    const auto expected = weights_by_hand(by_hand, 1, nullptr, [] {});
    Training by_fit(2), unclipped(2);
    EXPECT_EQ(first_difference(weights_by_fit(by_fit, row.options), expected), "");
    EXPECT_NE(first_difference(weights_by_fit(unclipped, {}), expected), "") << "nothing was clipped";
  }
}

TEST(ModelOptions, ATrainingThatAccumulatesResumesWithTheSameBits) {
  const auto fit = [](Training& t, const TemporaryFolder& folder, const Kill& kill) {
    return train::Model(t.net, t.optimizer, with_loss({.accumulate = 4}))
        .fit(known_batches(),
             train::FitOptions<Batch>{
                 .epochs = 3,
                 .validation = known_batches(17, 4),
                 .callbacks = {train::model_checkpoint({.folder = folder.path(), .every = {.steps = 1}}),
                               std::make_shared<KillAt>(kill)},
                 .verbose = train::Verbose::Silent,
                 .resume = true});
  };
  const TemporaryFolder other;
  Training whole(2);
  const train::History expected = fit(whole, other, {});
  EXPECT_EQ(whole.optimizer.steps(), 6);
  for (const Kill& kill : {Kill{.after_step = 3}, Kill{.after_step = 5}, Kill{.after_step = 11}, Kill{.epoch_ends = 1},
                           Kill{.validation_ends = 1}}) {
    const TemporaryFolder folder;
    Training first(2), second(2);
    EXPECT_THROW(fit(first, folder, kill), Killed);
    EXPECT_EQ(fit(second, folder, {}).epochs, expected.epochs);
    EXPECT_EQ(first_difference(second.weights(), whole.weights()), "");
  }
}

/// Notes whether its images are channels-last.
struct Convolutions : torch::nn::Module {
  Convolutions() : eye(torch::nn::Conv2dOptions(3, 8, 3)), head(8, 4) {
    register_module("eye", eye);
    register_module("head", head);
  }
  at::Tensor forward(const at::Tensor& images) {
    is_channels_last = images.is_contiguous(at::MemoryFormat::ChannelsLast);
    return head(eye(images).relu().mean({2, 3}));
  }
  torch::nn::Conv2d eye;
  torch::nn::Linear head;
  bool is_channels_last = false;
};

Batch known_images(std::int64_t count) {
  const at::Tensor x = torch::sin(torch::arange(count * 3 * 36, at::kFloat).mul(0.37)).view({count, 3, 6, 6});
  return {x, x.flatten(1).sum(1).mul(3).to(at::kLong).remainder(4).abs()};
}

TEST(ModelOptions, ChannelsLastHasTheBitsOfTheLoopByHand) {
  const auto dataset = data::from_tensor_slices(known_images(21)).batch(8);
  const auto train = [&](bool with_fit) {
    MirroredStrategy strategy({.devices = test_devices(2), .intra_op_threads = 1, .seed = 11});
    auto net = strategy.make<Convolutions>(ModuleOptions{.channels_last = true});
    auto optimizer = strategy.make_optimizer<torch::optim::Adam>(net, 0.01);
    if (with_fit) {
      train::Model model(net, optimizer, {.loss = train::losses::cross_entropy(), .channels_last = true});
      model.fit(dataset, {.epochs = 2, .verbose = train::Verbose::Silent});
      EXPECT_TRUE(net->is_channels_last);
      net.replica(0)->is_channels_last = false;
      model.predict(dataset);
      EXPECT_TRUE(net->is_channels_last);
      return copies_of(net.parameters());
    }
    for (int epoch = 0; epoch < 2; ++epoch) {
      for (const auto& batch : strategy.distribute(dataset)) {
        strategy.run(
            [&](const Batch& mine) {
              const at::Tensor images = mine.rows.contiguous(at::MemoryFormat::ChannelsLast);
              optimizer.minimize(average_loss(loss_per_row(net->forward(images), mine.labels)));
            },
            batch);
      }
    }
    return copies_of(net.parameters());
  };
  EXPECT_EQ(first_difference(train(true), train(false)), "");
}

TEST(ModelOptions, CaptureOnCpusIsAPlainRunWithTheReason) {
  const auto train = [](bool capture) {
    MirroredStrategy strategy({.devices = cpus(2), .intra_op_threads = 1, .seed = 11});
    auto net = strategy.make<Net>(24, 0.3);
    auto optimizer = strategy.make_optimizer<torch::optim::Adam>(net, 0.01);
    train::Model model(net, optimizer, with_loss({.capture = capture}));
    const Batch rows{known_rows(53).rows.cpu(), known_rows(53).labels.cpu()};
    model.fit(data::from_tensor_slices(rows).batch(10), {.epochs = 2, .verbose = train::Verbose::Silent});
    EXPECT_EQ(model.capture_reason(), capture ? "its replicas are on CPUs" : "");
    return copies_of(net.parameters());
  };
  LoggedLines lines;
  EXPECT_EQ(first_difference(train(true), train(false)), "");
  EXPECT_EQ(lines.count("fit runs training steps without a CUDA graph: its replicas are on CPUs"), 1);
}

TEST(ModelOptions, ThatMakeNoSenseAreRefused) {
  constexpr double kNan = std::numeric_limits<double>::quiet_NaN();
  const struct {
    train::ModelOptions options;
    const char* fragment;
  } table[] = {
      {{.accumulate = 0}, "accumulate must be >= 1, got 0"},
      {{.accumulate = -2}, "accumulate must be >= 1, got -2"},
      {{.clip_norm = 0.0}, "clip_norm must be finite and > 0, got 0"},
      {{.clip_norm = kNan}, "clip_norm must be finite and > 0, got nan"},
      {{.clip_value = -1.0}, "clip_value must be finite and > 0, got -1"},
  };
  Training t(2);
  for (const auto& row : table)
    expect_error([&] { train::Model(t.net, t.optimizer, row.options); }, Code::InvalidArgument, errors::kBadOption,
                 {row.fragment});
  auto net = t.strategy.make<Convolutions>();
  auto optimizer = t.strategy.make_optimizer<torch::optim::Adam>(net, 0.01);
  expect_error([&] { train::Model(net, optimizer, {.channels_last = true}); }, Code::InvalidArgument,
               errors::kBadOption, {"eye.weight", "strategy.make<Net>({.channels_last = true}"});
}

}  // namespace
}  // namespace lockstep
