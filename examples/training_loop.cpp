// Trains with custom metrics, callbacks and schedules, with other sources of batches, and with calls other than `fit`.
// docs/training_loop.md explains them.

#include <lockstep/lockstep.h>
#include <lockstep/train.h>
#include <torch/torch.h>

#include <cstdio>
#include <iostream>
#include <memory>
#include <string>

#include "devices.h"
#include "digits.h"

namespace ls = lockstep;
namespace nn = torch::nn;
using torch::Tensor;

nn::Sequential make_net() {
  return nn::Sequential(nn::Flatten(), nn::Linear(64, 128), nn::ReLU(), nn::Linear(128, 10));
}

/// Ends the training when it is good enough.
struct GoodEnough : ls::train::Callback {
  std::string name() const override { return "good_enough"; }
  ls::train::Decision epoch_ends(const ls::train::Training&, const ls::train::Logs& values) override {
    if (values.at("val_accuracy") < 0.96) return {};
    return {.stop = true, .reason = "val_accuracy is above 0.96"};
  }
};

/// The digits one by one, as a `torch::data` dataset.
struct DigitDataset : torch::data::Dataset<DigitDataset> {
  explicit DigitDataset(Digits all) : digits(std::move(all)) {}
  torch::data::Example<> get(std::size_t i) override { return {digits.images[i], digits.labels[i]}; }
  torch::optional<std::size_t> size() const override { return digits.count(); }

  Digits digits;
};

int main(int argc, char** argv) {
  torch::manual_seed(2);
  const auto [known, unseen] = split_digits(load_digits());
  const auto batches = ls::data::from_tensor_slices(known).shuffle(known.count()).batch(64);
  const auto held_out = ls::data::from_tensor_slices(unseen).batch(64);
  ls::MirroredStrategy strategy({.devices = devices_of(argc, argv, 2)});
  auto net = strategy.make(make_net);
  auto optimizer = strategy.make_optimizer<torch::optim::Adam>(net, torch::optim::AdamOptions(0.003));

  const auto sure = ls::train::metrics::custom("sure", [](const Tensor& output, const Tensor&) {
    return output.softmax(1).amax(1).gt(0.9).to(torch::kFloat);  // one value for each row
  });
  ls::train::Model model(
      net, optimizer,
      {.loss = ls::train::losses::cross_entropy({.label_smoothing = 0.05}),
       .metrics = {ls::train::metrics::accuracy(), ls::train::metrics::accuracy({.name = "top_3", .top_k = 3}), sure},
       .autocast = torch::kBFloat16});
  std::cout << model.summary() << "\n";

  const auto history =
      model.fit(batches, {.epochs = 20,
                          .validation = held_out,
                          .callbacks = {std::make_shared<GoodEnough>(), ls::train::terminate_on_nan({.every = 10})},
                          .schedule = ls::CosineSchedule{.base = 0.01, .warmup_steps = 20, .total_steps = 20 * 23}});
  std::printf("%d epochs, the last loss %.4f; stopped: %s\n", static_cast<int>(history.epochs.size()),
              history.last("loss"), history.stopped.c_str());

  auto rows = DigitDataset(known).map(torch::data::transforms::Stack<>());
  auto loader = torch::data::make_data_loader<torch::data::samplers::RandomSampler>(rows, 64);
  model.fit(ls::train::Batches(*loader), {.epochs = 1, .steps_per_epoch = 10});

  const Tensor guesses = model.predict(held_out).argmax(1);  // on the CPU, in the order of the rows
  const double right = guesses.eq(unseen.labels).to(torch::kDouble).mean().item<double>();
  const ls::train::Logs values = model.evaluate(held_out);
  std::printf("held out: accuracy %.4f, by hand %.4f\n", values.at("accuracy"), right);

  const ls::train::Logs step = model.train_on_batch(known.pick(torch::arange(64)));
  std::printf("one more step: loss %.4f\n", step.at("loss"));
  return right > 0.9 ? 0 : 1;
}
