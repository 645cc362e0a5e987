#include "lockstep/nn/fused_update.h"

#include <ATen/Version.h>
#include <ATen/ops/empty_like.h>
#include <torch/optim/sgd.h>

#include "lockstep/nn/fused_sgd.h"
#include "lockstep/strategy/intra_op.h"

namespace lockstep::detail {
namespace {

/// The momentum buffer in `inner`'s state, made if there is none yet.
float* momentum_buffer(const SegmentUpdate& update, nn::SgdNumbers& numbers) {
  auto& state = update.inner.state()[update.segment.unsafeGetTensorImpl()];
  if (!state) state = std::make_unique<torch::optim::SGDParamState>();
  auto& sgd = static_cast<torch::optim::SGDParamState&>(*state);
  numbers.first_step = !sgd.momentum_buffer().defined();
  if (numbers.first_step) sgd.momentum_buffer(at::empty_like(update.segment));
  return sgd.momentum_buffer().mutable_data_ptr<float>();
}

void update_sgd(const SegmentUpdate& update) {
  const auto& options =
      static_cast<const torch::optim::SGDOptions&>(update.inner.param_groups()[update.group].options());
  nn::SgdNumbers numbers{.learning_rate = static_cast<float>(options.lr()),
                         .momentum = static_cast<float>(options.momentum()),
                         .one_less_dampening = static_cast<float>(1 - options.dampening()),
                         .weight_decay = static_cast<float>(options.weight_decay()),
                         .nesterov = options.nesterov()};
  float* const buffer = options.momentum() != 0 ? momentum_buffer(update, numbers) : nullptr;
  float* const weights = update.segment.mutable_data_ptr<float>();
  for_ranges(update.segment.view({-1}), kElementwiseGrain, [&](std::int64_t begin, std::int64_t end) {
    std::vector<const float*> gradients = update.gradients;
    for (const float*& gradient : gradients) gradient += begin;
    nn::sum_and_update_sgd(gradients.data(), static_cast<int>(gradients.size()), update.divisor,
                           static_cast<std::size_t>(end - begin), weights + begin, buffer ? buffer + begin : nullptr,
                           numbers);
  });
}

}  // namespace

FusedUpdate fused_sgd_update() {
#if defined(__x86_64__)
  // Told to do without vectors (ATEN_CPU_CAPABILITY=default), LibTorch rounds products before it adds them.
  if (at::get_cpu_capability().rfind("AVX", 0) != 0) return nullptr;
#endif
  return nn::has_fused_sgd() ? &update_sgd : nullptr;
}

}  // namespace lockstep::detail
