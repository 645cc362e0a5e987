// Saves a checkpoint after each epoch of a training on two replicas, and continues the best one on three.

#include <lockstep/lockstep.h>
#include <lockstep/train.h>
#include <torch/torch.h>

#include <cmath>
#include <cstdio>
#include <filesystem>
#include <string>
#include <vector>

#include "digits.h"

namespace ls = lockstep;
namespace nn = torch::nn;

nn::Sequential make_net() {
  return nn::Sequential(nn::Flatten(), nn::Linear(64, 128), nn::ReLU(), nn::Dropout(0.2), nn::Linear(128, 10));
}

/// The model and the optimizer, which a program makes again before it restores a checkpoint.
struct Program {
  explicit Program(int replicas) : strategy({.devices = ls::cpus(replicas)}) {}

  ls::MirroredStrategy strategy;
  ls::MirroredModule<nn::SequentialImpl> net = strategy.make(make_net);
  ls::MirroredOptimizer<torch::optim::Adam> optimizer = strategy.make_optimizer<torch::optim::Adam>(net, 0.003);
  ls::train::Model model{
      net, optimizer, {.loss = ls::train::losses::cross_entropy(), .metrics = {ls::train::metrics::accuracy()}}};
  std::vector<ls::NamedState> parts = {{"model", net}, {"optimizer", optimizer}};
};

int main() {
  const std::string folder = "digits_checkpoints";
  std::filesystem::remove_all(folder);
  torch::manual_seed(1);
  const auto [known, unseen] = split_digits(load_digits());
  const auto batches = ls::data::from_tensor_slices(known).shuffle(known.count()).batch(64);
  const auto held_out = ls::data::from_tensor_slices(unseen).batch(64);

  Program two(2);
  {
    ls::train::CheckpointManager checkpoints(folder,
                                             {.keep = {.keep = 3, .best_metric = "val_loss", .keep_optimizer = 2}});
    const auto save = [&](const ls::train::Training& training, const ls::train::Logs& values) {
      checkpoints.save(training.step, ls::capture(two.strategy, two.parts), {{"val_loss", values.at("val_loss")}});
      return ls::train::Decision{};
    };
    two.model.fit(batches,
                  {.epochs = 5, .validation = held_out, .callbacks = {ls::train::lambda({.epoch_ends = save})}});
  }  // the manager waits for the last checkpoint
  const auto before = two.model.evaluate(held_out);

  Program three(3);
  const auto newest = ls::train::newest_checkpoint(folder);
  ls::restore(three.strategy, ls::train::read_checkpoint(newest->path), three.parts);
  const auto after = three.model.evaluate(held_out);
  std::printf("%s: loss %.4f, on three replicas %.4f\n", newest->path.c_str(), before.at("loss"), after.at("loss"));
  three.model.fit(batches, {.epochs = 7, .validation = held_out, .initial_epoch = 5});

  auto plain = make_net();  // without Lockstep's replicas
  for (const auto& [name, tensor] : ls::load_tensors(newest->path + "/model.safetensors")) {
    const torch::NoGradGuard no_grad;
    plain->named_parameters()[name].copy_(tensor);
  }
  plain->eval();
  const auto right = plain->forward(unseen.images).argmax(1).eq(unseen.labels).to(torch::kDouble).mean().item<double>();
  std::printf("read by hand: accuracy %.4f\n", right);
  return right == before.at("accuracy") && std::abs(after.at("loss") - before.at("loss")) < 1e-6 ? 0 : 1;
}
