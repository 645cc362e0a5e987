#include "lockstep/nn/fused_sgd.h"

#include <algorithm>

#include "lockstep/comm/ordered_sum.h"

namespace lockstep::detail {
namespace {

constexpr std::size_t kBlock = 1024;  // sums of a block stay in the first-level cache

#if defined(__x86_64__)
#define LOCKSTEP_WITH_FMA __attribute__((target("avx2,fma")))
#else
#define LOCKSTEP_WITH_FMA
#endif

/// Each line is one of LibTorch's operations, with `__builtin_fmaf` if its kernel fuses.
LOCKSTEP_WITH_FMA void update_block(const float* __restrict sums, std::size_t n, float* __restrict weights,
                                    const SgdNumbers& numbers) {
  const float decay = numbers.weight_decay, step = -numbers.learning_rate;
  for (std::size_t i = 0; i < n; ++i) {
    const float slope = decay != 0 ? __builtin_fmaf(weights[i], decay, sums[i]) : sums[i];
    weights[i] = __builtin_fmaf(slope, step, weights[i]);
  }
}

template <bool kFirst, bool kNesterov>
LOCKSTEP_WITH_FMA void update_block(const float* __restrict sums, std::size_t n, float* __restrict weights,
                                    float* __restrict buffer, const SgdNumbers& numbers) {
  const float decay = numbers.weight_decay, step = -numbers.learning_rate, momentum = numbers.momentum,
              share = numbers.one_less_dampening;
  for (std::size_t i = 0; i < n; ++i) {
    const float slope = decay != 0 ? __builtin_fmaf(weights[i], decay, sums[i]) : sums[i];
    const float velocity = kFirst ? slope : __builtin_fmaf(slope, share, buffer[i] * momentum);
    buffer[i] = velocity;
    weights[i] = __builtin_fmaf(kNesterov ? __builtin_fmaf(velocity, momentum, slope) : velocity, step, weights[i]);
  }
}

}  // namespace

bool has_fused_sgd() {
#if defined(__x86_64__)
  return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
#else
  return true;
#endif
}

void sum_and_update_sgd(const std::vector<const float*>& gradients, std::int64_t divisor, std::size_t begin,
                        std::size_t end, float* weights, float* momentum_buffer, const SgdNumbers& numbers) {
  alignas(64) float sums[kBlock];
  std::vector<const void*> inputs(gradients.size());
  for (std::size_t first = begin; first < end; first += kBlock) {
    const std::size_t n = std::min(kBlock, end - first);
    for (std::size_t k = 0; k < gradients.size(); ++k) inputs[k] = gradients[k] + first;
    void* output = sums;
    const float* slopes = sums;
    if (gradients.size() == 1 && divisor == 1) {
      slopes = gradients[0] + first;
    } else {
      ordered_sum(Dtype::Float32, inputs.data(), static_cast<int>(inputs.size()), &output, 1, n, divisor);
    }
    float* w = weights + first;
    if (momentum_buffer == nullptr) {
      update_block(slopes, n, w, numbers);
    } else if (numbers.first_step) {
      numbers.nesterov ? update_block<true, true>(slopes, n, w, momentum_buffer + first, numbers)
                       : update_block<true, false>(slopes, n, w, momentum_buffer + first, numbers);
    } else {
      numbers.nesterov ? update_block<false, true>(slopes, n, w, momentum_buffer + first, numbers)
                       : update_block<false, false>(slopes, n, w, momentum_buffer + first, numbers);
    }
  }
}

}  // namespace lockstep::detail
