#pragma once

#include <ATen/core/Tensor.h>

#include <algorithm>
#include <cstdint>
#include <cstring>

// One element of a gradient reveals writes that bypass Lockstep: LibTorch's functions write through `data()`, which
// leaves no trace but the values.
namespace lockstep::detail {

struct GradientSample {
  std::int64_t place = -1;  ///< in memory; -1: no sample
  std::uint64_t bits = 0;
};

inline bool has_plain_memory(const at::Tensor& gradient) {
  return gradient.defined() && gradient.layout() == at::kStrided && gradient.is_cpu() && gradient.numel() > 0 &&
         gradient.is_non_overlapping_and_dense();
}

inline std::size_t sample_width(const at::Tensor& gradient) {
  return std::min<std::size_t>(gradient.element_size(), sizeof(std::uint64_t));
}

inline std::uint64_t bits_at(const at::Tensor& gradient, std::int64_t place) {
  std::uint64_t bits = 0;
  std::memcpy(&bits,
              static_cast<const char*>(gradient.const_data_ptr()) +
                  static_cast<std::size_t>(place) * static_cast<std::size_t>(gradient.element_size()),
              sample_width(gradient));
  return bits;
}

/// Orders the bits of floating numbers by their absolute value. The sign of a zero does not count.
inline std::uint64_t magnitude_of(const at::Tensor& gradient, std::uint64_t bits) {
  return bits << (65 - 8 * sample_width(gradient));
}

/// The largest of a few elements, which clipping changes first. Scaling does not change zeros.
inline GradientSample sample_of_gradient(const at::Tensor& gradient) {
  constexpr std::int64_t kLooks = 16;
  if (!has_plain_memory(gradient)) return {};
  GradientSample sample{0, bits_at(gradient, 0)};
  const std::int64_t looks = std::min(kLooks, gradient.numel());
  for (std::int64_t i = 1; i < looks; ++i) {
    const std::int64_t place = gradient.numel() * i / looks;
    const std::uint64_t bits = bits_at(gradient, place);
    if (magnitude_of(gradient, bits) > magnitude_of(gradient, sample.bits)) sample = {place, bits};
  }
  return sample;
}

/// Whether the gradient still has an element where the sample was taken.
inline bool has_place(const at::Tensor& gradient, const GradientSample& sample) {
  return sample.place >= 0 && has_plain_memory(gradient) && sample.place < gradient.numel();
}

/// Whether it is nonzero.
inline bool has_number_at(const at::Tensor& gradient, std::int64_t place) {
  return magnitude_of(gradient, bits_at(gradient, place)) != 0;
}

}  // namespace lockstep::detail
