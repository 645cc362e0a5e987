#include "lockstep/strategy/kernels/max_pool_gradient.h"

#include <algorithm>

namespace lockstep::kernels {

void max_pool_input_gradient(const PooledImages& shape, const float* pooled_gradient, const std::int64_t* winners,
                             std::int64_t first, std::int64_t last, float* input_gradient) {
  const std::int64_t channels = shape.channels;
  for (std::int64_t image = first; image < last; ++image) {
    float* const pixels = input_gradient + image * shape.pixels * channels;
    std::fill_n(pixels, shape.pixels * channels, 0.0F);
    const std::int64_t begin = image * shape.pooled_pixels;
    for (std::int64_t pooled = begin; pooled < begin + shape.pooled_pixels; ++pooled) {
      const float* const slopes = pooled_gradient + pooled * channels;
      const std::int64_t* const to = winners + pooled * channels;
      for (std::int64_t c = 0; c < channels; ++c) {
        if (to[c] >= 0) pixels[to[c] * channels + c] += slopes[c];
      }
    }
  }
}

}  // namespace lockstep::kernels
