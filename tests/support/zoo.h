#pragma once

#include <torch/csrc/autograd/generated/variable_factories.h>
#include <torch/nn/module.h>

#include <cstdint>

#include "lockstep/strategy/strategy.h"
#include "tests/support/replicas.h"

// A model with everything that saved files must support.
namespace lockstep {

/// All kinds of parameters and buffers. Works element by element, so that its bits do not depend on which replica
/// computes.
struct Zoo : torch::nn::Module {
  explicit Zoo(std::int64_t size = 3000) {
    large = register_parameter("large", torch::randn({size}));
    image = register_parameter("image", torch::randn({4, 3, 2, 2}));
    number = register_parameter("number", torch::tensor(0.5));
    empty = register_parameter("empty", torch::zeros({0, 3}));
    unused = register_parameter("unused", torch::ones({5}));
    frozen = register_parameter("frozen", torch::randn({2}), /*requires_grad=*/false);
    tied = register_parameter("tied", large);
    turned = register_buffer("turned", torch::arange(6, at::kFloat).reshape({2, 3}).t());
    mean = register_buffer("mean", torch::zeros({2}));
    count = register_buffer("count", torch::tensor(std::int64_t{3}));
    flags = register_buffer("flags", torch::tensor({true, false}));
    spread = register_buffer("spread", torch::ones({1}).expand({4}));
  }
  /// The first replica has the whole loss: sums over replicas are the same for every number of them.
  at::Tensor loss(int step) const {
    const double share = my_id() == 0 ? 1.0 : 0.0;
    const double pull = 0.25 * step;
    return ((large - pull).square().sum() + (image * (step + 1)).square().sum() + (number - pull).square() +
            empty.sum()) *
           share;
  }
  at::Tensor large, image, number, empty, unused, frozen, tied, turned, mean, count, flags, spread;
};

/// Steps `first` to `last` - 1 of a model that has a loss for each.
template <class Model, class Optimizer>
void train_steps(Strategy& strategy, Model& model, Optimizer& optimizer, int first, int last) {
  for (int step = first; step < last; ++step) strategy.run([&] { optimizer.minimize(model->loss(step)); });
}

}  // namespace lockstep
