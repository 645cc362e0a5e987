// Trains a small model with `fit` and writes checkpoints for Python to read, and loads weights that Python wrote; the check
// "checkpoint" of interop.py is the other side.
//
//   interop_checkpoint write|load FOLDER

#include <ATen/ops/arange.h>
#include <ATen/ops/equal.h>
#include <torch/nn/modules/batchnorm.h>
#include <torch/nn/modules/linear.h>
#include <torch/optim/adam.h>

#include <cstdio>
#include <fstream>
#include <string>

#include "lockstep/lockstep.h"
#include "lockstep/train.h"

namespace ls = lockstep;

namespace {

struct Net : torch::nn::Module {
  Net() {
    register_module("first", first);
    register_module("norm", norm);
    register_module("second", second);
  }
  at::Tensor forward(const at::Tensor& x) { return second(norm(first(x))); }

  torch::nn::Linear first{3, 8}, second{8, 2};
  torch::nn::BatchNorm1d norm{8};
};

struct Rows {
  at::Tensor x, y;
};

/// Values as text, exactly: "model first.weight 0x1.8p-1 ...".
void write_values(std::ofstream& out, const std::string& name, const at::Tensor& tensor) {
  const at::Tensor values = tensor.detach().cpu().to(at::kDouble).flatten();
  out << name;
  for (std::int64_t i = 0; i < values.numel(); ++i) {
    char text[64];
    std::snprintf(text, sizeof text, " %a", values[i].item<double>());
    out << text;
  }
  out << '\n';
}

ls::MirroredModule<Net> make_net(ls::MirroredStrategy& strategy) { return strategy.make<Net>(); }

void write(const std::string& folder) {
  ls::MirroredStrategy strategy({.devices = ls::cpus(2), .seed = 3});
  auto net = make_net(strategy);
  auto optimizer = strategy.make_optimizer<torch::optim::Adam>(net, torch::optim::AdamOptions(0.01));
  ls::train::Model model(net, optimizer, {.loss = ls::train::losses::cross_entropy()});
  const Rows rows{at::arange(60, at::kFloat).view({20, 3}).sin(), at::arange(20, at::kLong).remainder(2)};
  model.fit(ls::data::from_tensor_slices(rows).batch(5),
            {.epochs = 3,
             .callbacks = {ls::train::model_checkpoint({.folder = folder + "/checkpoints"})},
             .verbose = ls::train::Verbose::Silent});
  std::ofstream out(folder + "/values.txt");
  for (const auto& weight : net->named_parameters()) write_values(out, "model " + weight.key(), weight.value());
  const ls::Snapshot state = ls::capture(strategy, {{"optimizer", optimizer}});
  for (const auto& [name, tensor] : state.shared) write_values(out, "optimizer " + name.substr(10), tensor);
}

/// Python has written weights of twice the value: ls::load makes them the model's.
int load(const std::string& folder) {
  ls::MirroredStrategy strategy({.devices = ls::cpus(2)});
  auto net = make_net(strategy);
  const auto newest = ls::train::newest_checkpoint(folder + "/checkpoints");
  if (!newest) return 1;
  const auto before = ls::load_tensors(newest->path + "/model.safetensors");
  ls::load(folder + "/doubled.safetensors", net, {.strict = false});  // buffers are each replica's own, in another file
  int wrong = 0;
  for (std::size_t replica = 0; replica < net.size(); ++replica) {
    for (const auto& weight : net.replica(replica)->named_parameters())
      wrong += !at::equal(weight.value(), before.at(weight.key()) * 2);
  }
  if (wrong > 0) std::printf("%d weights are not those that Python wrote\n", wrong);
  return wrong == 0 ? 0 : 1;
}

}  // namespace

int main(int count, char** arguments) {
  try {
    if (count == 3 && arguments[1] == std::string("write")) return write(arguments[2]), 0;
    if (count == 3 && arguments[1] == std::string("load")) return load(arguments[2]);
  } catch (const std::exception& error) {
    std::printf("%s\n", error.what());
    return 1;
  }
  std::printf("usage: %s write|load FOLDER\n", arguments[0]);
  return 2;
}
