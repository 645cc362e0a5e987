#pragma once

#include <algorithm>
#include <string>
#include <vector>

#include "lockstep/nn/loss.h"
#include "tests/support/small_net.h"

// Mirrored training compared to a plain LibTorch loop.
namespace lockstep {

/// Two layers with dropout between them, and a parameter that no gradient reaches.
struct Net : torch::nn::Module {
  explicit Net(std::int64_t hidden = 70, double dropout = 0.0)
      : first(9, hidden), second(hidden, 4), drop(torch::nn::DropoutOptions(dropout)) {
    register_module("first", first);
    register_module("second", second);
    register_module("drop", drop);
    unused = register_parameter("unused", torch::ones({5}));
  }
  at::Tensor forward(const at::Tensor& x) { return second(drop(first(x).tanh())); }

  torch::nn::Linear first, second;
  torch::nn::Dropout drop;
  at::Tensor unused;
};

/// Piece k of n pieces whose sizes differ; the last may be empty.
inline Batch piece_of(const Batch& batch, int k, int n) {
  const std::int64_t rows = batch.rows.size(0);
  const std::int64_t each = (rows + n - 1) / n;
  const std::int64_t begin = std::min(rows, k * each);
  const std::int64_t end = std::min(rows, begin + each);
  return {batch.rows.slice(0, begin, end), batch.labels.slice(0, begin, end)};
}

inline PerReplica<Batch> split(Strategy& strategy, const Batch& batch) {
  return strategy.values_from_function([&](const ValueContext& context) {
    return piece_of(batch, context.replica_id_in_sync_group, context.num_replicas_in_sync);
  });
}

template <class Model, class Optimizer>
void mirrored_step(Strategy& strategy, Model& model, Optimizer& optimizer, const Batch& batch) {
  const std::int64_t global = batch.rows.size(0);
  strategy.run(
      [&](const Batch& mine) {
        optimizer.minimize(average_loss(loss_per_row(model->forward(mine.rows), mine.labels), global));
      },
      split(strategy, batch));
}

inline double largest_relative_difference(const std::vector<at::Tensor>& a, const std::vector<at::Tensor>& b) {
  double worst = 0;
  for (std::size_t i = 0; i < a.size(); ++i) {
    const double scale = std::max(1e-3, b[i].abs().max().item<double>());
    worst = std::max(worst, a[i].sub(b[i]).abs().max().item<double>() / scale);
  }
  return worst;
}

}  // namespace lockstep
