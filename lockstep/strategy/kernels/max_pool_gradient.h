#pragma once

#include <cstdint>

namespace lockstep::kernels {

/// Images whose pixels hold all channels side by side (channels-last).
struct PooledImages {
  std::int64_t channels = 0;
  std::int64_t pixels = 0;         ///< of an image before pooling
  std::int64_t pooled_pixels = 0;  ///< of an image after it
};

/// The gradient of a max-pooling's input for images [first, last): every pooled value's gradient goes to the pixel that
/// `winners` names, a number within its image. Adds in the order in which LibTorch does, so that windows that overlap
/// give the same bits.
void max_pool_input_gradient(const PooledImages& shape, const float* pooled_gradient, const std::int64_t* winners,
                             std::int64_t first, std::int64_t last, float* input_gradient);

}  // namespace lockstep::kernels
