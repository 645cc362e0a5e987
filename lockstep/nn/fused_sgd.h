#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace lockstep::detail {

/// The numbers of one step of `torch::optim::SGD`.
struct SgdNumbers {
  float learning_rate = 0;
  bool has_momentum = false;  ///< `momentum` may be too small for a float
  float momentum = 0;
  float one_less_dampening = 1;
  float weight_decay = 0;
  bool nesterov = false;
  bool first_step = false;  ///< the momentum buffer is still unset
};

/// Whether this CPU has fused multiply-add, which the arithmetic of LibTorch's kernels needs.
bool has_fused_sgd();

/// For elements [begin, end): sums the replicas' gradients in the one order of summation, divides by `divisor`, and
/// updates `weights` and `momentum_buffer` (null without momentum), all in one pass over memory instead of four. Same
/// bits as `ordered_sum` followed by `torch::optim::SGD`.
void sum_and_update_sgd(const std::vector<const float*>& gradients, std::int64_t divisor, std::size_t begin,
                        std::size_t end, float* weights, float* momentum_buffer, const SgdNumbers& numbers);

}  // namespace lockstep::detail
