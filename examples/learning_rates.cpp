// Finds a learning rate, then trains with a schedule that begins with a warm-up, and shows more than curves in
// TensorBoard.

#include <lockstep/lockstep.h>
#include <lockstep/train.h>
#include <torch/torch.h>

#include <cstdio>
#include <fstream>
#include <map>
#include <memory>
#include <string>
#include <utility>

#include "devices.h"
#include "digits.h"

namespace ls = lockstep;
namespace nn = torch::nn;
using torch::Tensor;

/// Images, and 1 for digits that are odd.
struct Parity {
  Tensor images, odd;
};

Parity parity_of(const Digits& digits) {
  return {digits.images, digits.labels.remainder(2).to(torch::kFloat).unsqueeze(1)};
}

nn::Sequential make_net() { return nn::Sequential(nn::Flatten(), nn::Linear(64, 128), nn::ReLU(), nn::Linear(128, 1)); }

int main(int argc, char** argv) {
  torch::manual_seed(4);
  const auto [known, unseen] = split_digits(load_digits());
  const auto batches = ls::data::from_tensor_slices(parity_of(known)).shuffle(known.count()).batch(64);
  const auto held_out = ls::data::from_tensor_slices(parity_of(unseen)).batch(64);
  ls::MirroredStrategy strategy({.devices = devices_of(argc, argv, 2)});
  auto net = strategy.make(make_net);
  auto optimizer = strategy.make_optimizer<torch::optim::SGD>(net, torch::optim::SGDOptions(0.1).momentum(0.9));
  ls::train::Model model(net, optimizer,
                         {.loss = ls::train::losses::binary_cross_entropy(),
                          .metrics = {ls::train::metrics::auc({.from_logits = true, .exact = true})}});

  const auto range = ls::train::find_learning_rate(model, batches, {.from = 1e-4, .to = 10, .steps = 80});
  std::ofstream("learning_rates.svg") << range.svg();
  const double rate = range.suggestion.value_or(0.1);
  std::printf("%d rates tried, the loss falls fastest at %.3g\n", static_cast<int>(range.points.size()), rate);

  const auto logs = ls::train::tensor_board(
      {.folder = "learning_rates_logs",
       .histograms_every = 1,
       .images =
           [&](const ls::train::Training&) {
             const Tensor weights = net.parameters()[0].detach().slice(0, 0, 16).view({4, 4, 8, 8});
             const Tensor tiles = weights.permute({0, 2, 1, 3}).reshape({32, 32});  // the input patterns of 16 neurons
             return std::map<std::string, Tensor>{{"neurons", tiles / tiles.abs().max() * 0.5 + 0.5}};
           },
       .hparams = {{"rate", rate}, {"momentum", 0.9}, {"optimizer", std::string("sgd")}}});
  const auto history = model.fit(
      batches, {.epochs = 6,
                .validation = held_out,
                .callbacks = {logs},
                .schedule = ls::with_warmup(20, ls::OneCycleSchedule{.peak = rate, .total_steps = 6 * 23 - 20})});

  const auto falling = ls::train::torch_scheduler(optimizer, [](torch::optim::Optimizer& of) {
    return std::make_shared<torch::optim::StepLR>(of, /*step_size=*/1, /*gamma=*/0.5);
  });
  optimizer.set_learning_rate(rate / 10);
  model.fit(batches, {.epochs = 2, .callbacks = {falling}});
  return history.last("val_auc") > 0.97 ? 0 : 1;
}
