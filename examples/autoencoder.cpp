// A variational autoencoder with `fit`: a network with three outputs, a loss over all of them, a metric of one,
// averages of the weights, and options for accumulation and clipping. `--device gpu` puts the replicas on a GPU.

#include <lockstep/lockstep.h>
#include <lockstep/train.h>
#include <torch/torch.h>

#include <cstdio>
#include <utility>

#include "devices.h"
#include "digits.h"

namespace ls = lockstep;
namespace nn = torch::nn;
using torch::Tensor;

struct Painting {
  Tensor image, mean, log_variance;
};

struct Autoencoder : nn::Module {
  Autoencoder() : encode(64, 96), describe(96, 16), paint(8, 96), finish(96, 64) {
    register_module("encode", encode);
    register_module("describe", describe);
    register_module("paint", paint);
    register_module("finish", finish);
  }
  Painting forward(const Tensor& images) {
    const auto halves = describe(encode(images.flatten(1)).relu()).chunk(2, 1);
    const auto drawn = is_training() ? halves[0] + torch::randn_like(halves[0]) * (0.5 * halves[1]).exp() : halves[0];
    return {finish(paint(drawn).relu()).sigmoid().view_as(images), halves[0], halves[1]};
  }

  nn::Linear encode, describe, paint, finish;
};

/// One value per row: the reconstruction error, and the divergence of the code from a normal distribution.
Tensor loss_of(const Painting& painting, const Digits& mine) {
  const auto error = (painting.image - mine.images).square().flatten(1).sum(1);
  const auto divergence = painting.mean.square() + painting.log_variance.exp() - painting.log_variance - 1;
  return error + 0.05 * divergence.sum(1);
}

int main(int argc, char** argv) {
  torch::manual_seed(6);
  const auto [known, unseen] = split_digits(load_digits());
  const auto batches = ls::data::from_tensor_slices(known).shuffle(known.count()).batch(32);
  const auto held_out = ls::data::from_tensor_slices(unseen).batch(64);
  ls::MirroredStrategy strategy({.devices = devices_of(argc, argv, 2)});
  auto net = strategy.make<Autoencoder>();
  auto optimizer = strategy.make_optimizer<torch::optim::Adam>(net, torch::optim::AdamOptions(0.004));

  const auto pixels = [](const Painting& painting, const Digits& mine) {
    return std::pair{painting.image, mine.images};
  };
  ls::train::Model model(net, optimizer,
                         {.loss = loss_of,
                          .metrics = {ls::train::metrics::select(ls::train::metrics::rmse(), pixels)},
                          .accumulate = 2,
                          .clip_norm = 5.0});
  auto averages = ls::train::ema(net, {.decay = 0.98});
  const auto history = model.fit(batches, {.epochs = 20, .validation = held_out, .callbacks = {averages}});

  averages->swap();  // the network has the averages from here on
  const auto painting = model.predict<Painting>(held_out);
  const double error = (painting.image - unseen.images).square().mean().sqrt().item<double>();
  std::printf("held out: rmse %.4f, by hand %.4f, codes of %d numbers\n", history.last("val_rmse"), error,
              static_cast<int>(painting.mean.size(1)));
  return error < 0.2 ? 0 : 1;
}
