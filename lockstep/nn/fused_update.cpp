#include "lockstep/nn/fused_update.h"

#include <ATen/Version.h>
#include <ATen/ops/empty_like.h>
#include <torch/optim/sgd.h>

#include <memory>

#include "lockstep/nn/fused_sgd.h"
#include "lockstep/strategy/intra_op.h"

namespace lockstep::detail {
namespace {

void update_sgd(const SegmentUpdate& update) {
  SgdNumbers numbers = sgd_numbers(update.inner.param_groups()[update.group].options());
  float* buffer = nullptr;
  if (numbers.has_momentum) {
    at::Tensor& momentum = sgd_momentum_buffer(update.inner, update.weights);
    numbers.first_step = !momentum.defined();
    if (numbers.first_step) momentum = at::empty_like(update.weights);
    buffer = momentum.mutable_data_ptr<float>();
  }
  float* const weights = update.weights.mutable_data_ptr<float>();
  for_ranges(update.weights.view({-1}), kElementwiseGrain, [&](std::int64_t begin, std::int64_t end) {
    sum_and_update_sgd(update.gradients, update.divisor, static_cast<std::size_t>(begin), static_cast<std::size_t>(end),
                       weights, buffer, numbers);
  });
}

}  // namespace

SgdNumbers sgd_numbers(const torch::optim::OptimizerOptions& any) {
  const auto& options = static_cast<const torch::optim::SGDOptions&>(any);
  return {.learning_rate = static_cast<float>(options.lr()),
          .has_momentum = options.momentum() != 0,
          .momentum = static_cast<float>(options.momentum()),
          .one_less_dampening = static_cast<float>(1 - options.dampening()),
          .weight_decay = static_cast<float>(options.weight_decay()),
          .nesterov = options.nesterov()};
}

at::Tensor& sgd_momentum_buffer(torch::optim::Optimizer& sgd, const at::Tensor& weights) {
  auto& state = sgd.state()[weights.unsafeGetTensorImpl()];
  if (!state) state = std::make_unique<torch::optim::SGDParamState>();
  return static_cast<torch::optim::SGDParamState&>(*state).momentum_buffer();
}

FusedUpdate fused_sgd_update() {
#if defined(__x86_64__)
  // Without vectors (ATEN_CPU_CAPABILITY=default) LibTorch rounds products before adding them.
  if (at::get_cpu_capability().rfind("AVX", 0) != 0) return nullptr;
#endif
  return has_fused_sgd() ? &update_sgd : nullptr;
}

}  // namespace lockstep::detail
