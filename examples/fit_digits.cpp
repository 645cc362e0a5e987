// Does what convnet_lockstep.cpp does, with `fit` in place of the loops.

#include <lockstep/lockstep.h>
#include <lockstep/train.h>
#include <torch/torch.h>

#include "devices.h"
#include "digits.h"

namespace ls = lockstep;
namespace nn = torch::nn;
using torch::Tensor;

struct NetImpl : nn::Module {
  NetImpl() : first(1, 16, 3), second(16, 32, 3), drop(0.2), last(32 * 16, 10) {
    register_module("first", first);
    register_module("second", second);
    register_module("drop", drop);
    register_module("last", last);
  }
  Tensor forward(const Tensor& images) { return last(drop(second(first(images).relu()).relu().flatten(1))); }

  nn::Conv2d first, second;
  nn::Dropout drop;
  nn::Linear last;
};
TORCH_MODULE(Net);

int main(int argc, char** argv) {
  torch::manual_seed(1);
  const auto [known, unseen] = split_digits(load_digits());
  const auto batches = ls::data::from_tensor_slices(known).shuffle(known.count()).batch(64);
  const auto held_out = ls::data::from_tensor_slices(unseen).batch(64);

  ls::MirroredStrategy strategy({.devices = devices_of(argc, argv, 2)});
  auto net = strategy.make<Net>();
  auto optimizer = strategy.make_optimizer<torch::optim::Adam>(net, torch::optim::AdamOptions(0.003));
  ls::train::Model model(net, optimizer,
                         {.loss = ls::train::losses::cross_entropy(), .metrics = {ls::train::metrics::accuracy()}});
  const auto history = model.fit(batches, {.epochs = 10, .validation = held_out});
  ls::save("fit_digits.safetensors", net);
  return history.last("val_accuracy") > 0.95 ? 0 : 1;
}
