#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/cross_entropy_loss.h>
#include <torch/csrc/autograd/generated/variable_factories.h>
#include <torch/nn/modules/batchnorm.h>
#include <torch/nn/modules/dropout.h>
#include <torch/nn/modules/linear.h>

#include <vector>

#include "lockstep/strategy/strategy.h"
#include "tests/support/same_bits.h"

// A small model and batches for it.
namespace lockstep {

/// Two layers with batch norm and dropout between them, and a parameter that no gradient reaches.
struct SmallNet : torch::nn::Module {
  explicit SmallNet(std::int64_t hidden = 24, double dropout = 0.0)
      : first(9, hidden), norm(hidden), drop(torch::nn::DropoutOptions(dropout)), second(hidden, 4) {
    register_module("first", first);
    register_module("norm", norm);
    register_module("drop", drop);
    register_module("second", second);
    unused = register_parameter("unused", torch::ones({5}));
  }
  at::Tensor forward(const at::Tensor& x) { return second(drop(norm(first(x)).tanh())); }

  torch::nn::Linear first;
  torch::nn::BatchNorm1d norm;
  torch::nn::Dropout drop;
  torch::nn::Linear second;
  at::Tensor unused;
};

struct Batch {
  at::Tensor rows, labels;

  Batch pick(const at::Tensor& which) const { return {rows.index_select(0, which), labels.index_select(0, which)}; }
  Batch part(int k, int parts) const { return {rows.tensor_split(parts)[k], labels.tensor_split(parts)[k]}; }
};

inline Batch random_batch(std::int64_t rows, at::ScalarType dtype = at::kFloat) {
  return {torch::randn({rows, 9}, dtype), torch::randint(0, 4, {rows}, at::kLong)};
}

inline PerReplica<Batch> share_out(Strategy& strategy, const Batch& batch) {
  return strategy.values_from_function(
      [&](const ValueContext& its) { return batch.part(its.replica_id_in_sync_group, its.num_replicas_in_sync); });
}

inline at::Tensor loss_per_row(const at::Tensor& logits, const at::Tensor& labels) {
  return at::cross_entropy_loss(logits, labels, {}, at::Reduction::None);
}

inline std::vector<at::Tensor> copies_of(const std::vector<at::Tensor>& tensors) {
  std::vector<at::Tensor> copies;
  for (const auto& tensor : tensors) copies.push_back(tensor.detach().clone());
  return copies;
}

inline void copy_values(const std::vector<at::Tensor>& from, const std::vector<at::Tensor>& to) {
  const at::NoGradGuard no_grad;
  for (std::size_t i = 0; i < from.size(); ++i) at::Tensor(to[i]).copy_(from[i]);
}

}  // namespace lockstep
