#pragma once

#include <torch/nn.h>

#include <cstdint>
#include <string>
#include <vector>

namespace lockstep::bench {

/// A network and the shape of one example. The peers in bench/peers train networks of the same shapes.
struct Model {
  torch::nn::Sequential net;
  std::vector<std::int64_t> example;
};

/// `mlp`: many small operations; `cnn`: convolutions; `wide`: 33 million weights, so that updates and reductions count.
inline Model make_model(const std::string& name) {
  namespace nn = torch::nn;
  if (name == "mlp") {
    return {nn::Sequential(nn::Linear(784, 1024), nn::ReLU(), nn::Linear(1024, 1024), nn::ReLU(), nn::Linear(1024, 10)),
            {784}};
  }
  if (name == "cnn") {
    return {nn::Sequential(nn::Conv2d(1, 32, 3), nn::ReLU(), nn::Conv2d(32, 64, 3), nn::ReLU(), nn::MaxPool2d(2),
                           nn::Flatten(), nn::Linear(9216, 128), nn::ReLU(), nn::Linear(128, 10)),
            {1, 28, 28}};
  }
  if (name == "wide") {
    nn::Sequential net;
    for (int layer = 0; layer < 8; ++layer) {
      net->push_back(nn::Linear(2048, 2048));
      net->push_back(nn::ReLU());
    }
    net->push_back(nn::Linear(2048, 10));
    return {net, {2048}};
  }
  return {};
}

}  // namespace lockstep::bench
