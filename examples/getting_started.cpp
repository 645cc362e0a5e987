// Trains a small network to tell two spirals apart: `getting_started [epochs]`. Stop it and start it again: it continues.

#include <lockstep/lockstep.h>
#include <lockstep/train.h>
#include <torch/torch.h>

#include <cmath>
#include <cstdio>
#include <cstdlib>

namespace ls = lockstep;
namespace nn = torch::nn;

struct Points {
  torch::Tensor place, spiral;
};

/// Points near two spirals, and on which of them each lies.
Points make_points(std::int64_t count) {
  const auto spiral = torch::randint(0, 2, {count}, torch::kLong);
  const auto radius = torch::rand({count});
  const auto angle = 2 * M_PI * radius + M_PI * spiral;
  const auto place = torch::stack({radius * angle.cos(), radius * angle.sin()}, 1);
  return {place + 0.02 * torch::randn({count, 2}), spiral};
}

nn::Sequential make_net() {
  return nn::Sequential(nn::Linear(2, 64), nn::ReLU(), nn::Linear(64, 64), nn::ReLU(), nn::Linear(64, 2));
}

int main(int argc, char** argv) {
  const int epochs = argc > 1 ? std::atoi(argv[1]) : 10;
  torch::manual_seed(1);
  const auto batches = ls::data::from_tensor_slices(make_points(8000)).batch(100);
  const auto held_out = ls::data::from_tensor_slices(make_points(2000)).batch(100);

  ls::MirroredStrategy strategy({.devices = ls::cpus(2)});
  auto net = strategy.make(make_net);
  auto optimizer = strategy.make_optimizer<torch::optim::Adam>(net, torch::optim::AdamOptions(0.003));
  ls::train::Model model(net, optimizer,
                         {.loss = ls::train::losses::cross_entropy(), .metrics = {ls::train::metrics::accuracy()}});

  const std::vector<ls::NamedState> parts = {{"model", net}, {"optimizer", optimizer}};
  ls::train::CheckpointManager checkpoints("spirals");
  if (const auto newest = checkpoints.resume()) {
    ls::restore(strategy, ls::train::read_checkpoint(newest->path), parts);
    std::printf("continues after step %d\n", static_cast<int>(newest->step));
  }
  const auto save = [&](const ls::train::Training&, const ls::train::Logs& values) {
    checkpoints.save(optimizer.steps(), ls::capture(strategy, parts), values);
    return ls::train::Decision{};
  };

  const auto epochs_done = static_cast<int>(optimizer.steps() / batches.cardinality().value());
  model.fit(batches, {.epochs = epochs,
                      .validation = held_out,
                      .callbacks = {ls::train::lambda({.epoch_ends = save})},
                      .initial_epoch = epochs_done});
  const auto result = model.evaluate(held_out);
  std::printf("held out: accuracy %.4f, loss %.6f\n", result.at("accuracy"), result.at("loss"));
  ls::save("spirals.safetensors", net);
}
