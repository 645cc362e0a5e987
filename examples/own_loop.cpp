// A loop of your own with the metrics, progress and callbacks of `fit`. Its step is in parts: it clips the gradients and reports
// their norm.

#include <lockstep/lockstep.h>
#include <lockstep/train.h>
#include <torch/torch.h>

#include "devices.h"
#include "digits.h"

namespace ls = lockstep;
namespace nn = torch::nn;

nn::Sequential make_net() {
  return nn::Sequential(nn::Flatten(), nn::Linear(64, 128), nn::ReLU(), nn::Linear(128, 10));
}

int main(int argc, char** argv) {
  torch::manual_seed(4);
  const auto [known, unseen] = split_digits(load_digits());
  const ls::train::Batches batches(ls::data::from_tensor_slices(known).shuffle(known.count()).batch(64));
  const ls::train::Batches held_out(ls::data::from_tensor_slices(unseen).batch(64));

  ls::MirroredStrategy strategy({.devices = devices_of(argc, argv, 2)});
  auto net = strategy.make(make_net);
  auto optimizer = strategy.make_optimizer<torch::optim::Adam>(net, torch::optim::AdamOptions(0.003));
  const auto loss = ls::train::losses::cross_entropy();

  ls::train::Loop loop(strategy, {.epochs = 10,
                                  .callbacks = {ls::train::early_stopping({.patience = 2})},
                                  .metrics = {ls::train::metrics::accuracy()},
                                  .optimizers = {optimizer}});
  auto train_step = [&](const Digits& mine) {
    const auto output = net->forward(mine.images);
    const auto losses = loss(output, mine.labels);
    optimizer.backward(ls::average_loss(losses));
    optimizer.reduce_gradients();
    const double norm = optimizer.clip_global_norm(1.0);
    optimizer.step();
    loop.meters().add(output, mine.labels);
    loop.meters().add_mean("loss", losses);
    loop.meters().add_mean("norm", torch::tensor(norm));
  };
  auto validation_step = [&](const Digits& mine) {
    const torch::NoGradGuard no_grad;
    const auto output = net->forward(mine.images);
    loop.meters().add(output, mine.labels);
    loop.meters().add_mean("loss", loss(output, mine.labels));
  };
  while (loop.next_epoch()) {
    net.train();
    for (const auto& batch : loop.steps(batches)) strategy.run(train_step, batch);
    loop.begin_validation();
    net.eval();
    for (const auto& batch : loop.validation_steps(held_out)) strategy.run(validation_step, batch);
  }
  return loop.history().last("val_accuracy") > 0.9 ? 0 : 1;
}
