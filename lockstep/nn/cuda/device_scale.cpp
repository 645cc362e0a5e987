#include <ATen/ops/empty.h>
#include <c10/cuda/CUDAException.h>
#include <c10/cuda/CUDAGuard.h>

#include <limits>

#include "lockstep/nn/cuda/device_numbers.h"
#include "lockstep/nn/cuda/device_updater.h"
#include "lockstep/nn/cuda/norm_kernels.h"
#include "lockstep/nn/optimizer_core.h"
#include "lockstep/nn/step/device_step.h"
#include "lockstep/nn/step/loss_scale.h"
#include "lockstep/nn/step/recording.h"
#include "lockstep/values/const_data.h"

namespace lockstep::detail {
namespace {

gpu::ScaleNumbers* numbers_of(const LossScale& scale) {
  static_assert(sizeof(gpu::ScaleNumbers) == 3 * sizeof(double));
  return reinterpret_cast<gpu::ScaleNumbers*>(scale.on_device.mutable_data_ptr<double>());
}

}  // namespace

bool can_scale_on_device(const OptimizerCore& core, const at::Tensor& loss) {
  return loss.is_cuda() && core.settings.accumulate == 1 && has_device_update(core);
}

void send_scale(LossScale& scale, at::Device device) {
  if (scale.is_sent) return;
  if (!scale.on_device.defined()) scale.on_device = at::empty({3}, at::TensorOptions(device).dtype(at::kDouble));
  const auto& [value, good_steps] = scale.state_;
  const gpu::ScaleNumbers numbers{value, static_cast<double>(good_steps), 1.0 / value};
  const c10::cuda::CUDAGuard here(device);
  C10_CUDA_CHECK(gpu::set_scale(numbers, numbers_of(scale), current_stream(scale.on_device)));
  scale.is_sent = true;
}

void fetch_scale(LossScale& scale) {
  if (!scale.is_ahead) return;
  const at::Tensor seen = scale.on_device.cpu();
  const auto* const numbers = const_data<double>(seen);
  scale.state_ = {numbers[0], static_cast<std::int64_t>(numbers[1])};
  scale.is_ahead = false;
}

at::Tensor scale_on_device(LossScale& scale, const at::Tensor& loss) {
  send_scale(scale, loss.device());
  return loss.mul(scale.on_device.select(0, 0).to(loss.scalar_type()));
}

void DeviceUpdater::unscale(ReplicaPart& mine) {
  const LossScale& scale = *mine.scale;
  gpu::Segments segments;
  for (const OwnedSegment& segment : mine.owned) {
    if (!segment.sum.defined()) continue;
    segments.push_back({.target = segment.sum.mutable_data_ptr<float>() + segment.where.begin,
                        .elements = segment.where.end - segment.where.begin});
  }
  const c10::cuda::CUDAGuard here(scale.on_device.device());
  C10_CUDA_CHECK(gpu::multiply_segments(segments, &numbers_of(scale)->inverse, current_stream(scale.on_device)));
}

void DeviceUpdater::update_scale(const ReplicaPart& mine) const {
  LossScale& scale = *mine.scale;
  const gpu::ScaleRule rule{scale.options.growth, scale.options.backoff,
                            static_cast<double>(scale.options.growth_interval),
                            double{std::numeric_limits<float>::min()}};
  const c10::cuda::CUDAGuard here(scale.on_device.device());
  const auto* const bad = reinterpret_cast<const gpu::BadSum*>(bad_sums_for(mine).mutable_data_ptr<std::int64_t>());
  C10_CUDA_CHECK(gpu::update_scale(rule, bad, static_cast<int>(core_.replicas.size()), numbers_of(scale),
                                   current_stream(scale.on_device)));
  scale.is_ahead = true;
}

}  // namespace lockstep::detail
