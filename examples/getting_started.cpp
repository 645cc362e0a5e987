// Trains a small network to separate two spirals. Kill it and start it again: it continues.

#include <lockstep/lockstep.h>
#include <lockstep/train.h>
#include <torch/torch.h>

#include <cmath>
#include <cstdio>

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

int main() {
  torch::manual_seed(1);
  const auto batches = ls::data::from_tensor_slices(make_points(8000)).shuffle(8000).batch(100);
  const auto held_out = ls::data::from_tensor_slices(make_points(2000)).batch(100);

  ls::MirroredStrategy strategy({.devices = ls::cpus(2)});
  auto net = strategy.make(make_net);
  auto optimizer = strategy.make_optimizer<torch::optim::Adam>(net, torch::optim::AdamOptions(0.003));
  ls::train::Model model(net, optimizer,
                         {.loss = ls::train::losses::cross_entropy(), .metrics = {ls::train::metrics::accuracy()}});

  model.fit(batches, {.epochs = 10,
                      .validation = held_out,
                      .callbacks = {ls::train::csv_logger({.path = "spirals.csv"}),
                                    ls::train::model_checkpoint({.folder = "spirals", .every = {.steps = 50}})},
                      .resume = true});
  const auto result = model.evaluate(held_out);
  std::printf("held out: accuracy %.4f, loss %.6f\n", result.at("accuracy"), result.at("loss"));
  ls::save("spirals.safetensors", net);
}
