#pragma once

#include <ATen/core/Tensor.h>
#include <torch/optim/adam.h>

#include <cstdint>
#include <sstream>
#include <string>
#include <vector>

#include "lockstep/nn/loss.h"
#include "lockstep/strategy/mirrored_strategy.h"
#include "lockstep/train.h"
#include "tests/support/plain_loop.h"
#include "tests/support/replicas.h"
#include "tests/support/small_net.h"

// A small training for tests of the loop: rows, a model, an optimizer.
namespace lockstep {

/// The same rows for every call.
inline Batch known_rows(std::int64_t rows) {
  const at::Tensor x = torch::sin(torch::arange(rows * 9, at::kFloat).mul(0.37)).view({rows, 9});
  return {x, x.sum(1).mul(3).to(at::kLong).remainder(4).abs()};
}

inline data::Dataset<Batch> known_batches(std::int64_t rows = 53, std::int64_t size = 10) {
  return data::from_tensor_slices(known_rows(rows)).shuffle(rows).batch(size);
}

/// A strategy with a model and an optimizer, the same each time.
struct Training {
  explicit Training(int replicas, double dropout = 0.3)
      : strategy({.devices = test_devices(replicas), .intra_op_threads = 1, .seed = 11}),
        net(strategy.make<Net>(24, dropout)),
        optimizer(strategy.make_optimizer<torch::optim::Adam>(net, torch::optim::AdamOptions(0.01))),
        model(net, optimizer, {.loss = train::losses::cross_entropy(), .metrics = {train::metrics::accuracy()}}) {}

  std::vector<at::Tensor> weights() const { return copies_of(net.parameters()); }
  /// Without output.
  train::History fit(const data::Dataset<Batch>& batches, train::FitOptions<Batch> options) {
    if (options.out == nullptr) options.verbose = train::Verbose::Silent;
    return model.fit(batches, options);
  }

  MirroredStrategy strategy;
  MirroredModule<Net> net;
  MirroredOptimizer<torch::optim::Adam> optimizer;
  train::Model model;
};

}  // namespace lockstep
