#pragma once

#include <bit>
#include <cstdint>

#ifdef __aarch64__
#include <arm_neon.h>
#endif

namespace lockstep::detail {

// Arithmetic on the 16-bit floating types: eight of them are widened to floats, processed, and narrowed again, rounding
// to nearest, ties to even. Written with vector types, because compilers do not vectorise it by themselves; without
// branches, so that it is fast on any data.

using Half8 = std::uint16_t __attribute__((vector_size(16)));
using Float4 = float __attribute__((vector_size(16)));
using Bits4 = std::uint32_t __attribute__((vector_size(16)));

/// Eight elements as floats; the format decides which of them are in `a` and which in `b`.
struct Float8 {
  Float4 a;
  Float4 b;
};

inline Bits4 all(std::uint32_t value) { return Bits4{value, value, value, value}; }

/// For floats that are not NaN: a mask of ones.
inline auto is_number(Bits4 bits) { return (bits & 0x7fffffffu) <= all(0x7f800000u); }

/// bfloat16: the upper half of a float.
struct BFloat16Format {
  static Float8 widen(Half8 halves) {
    const auto pairs = std::bit_cast<Bits4>(halves);
    return {std::bit_cast<Float4>(pairs << 16), std::bit_cast<Float4>(pairs & 0xffff0000u)};
  }

  static Half8 narrow(const Float8& floats) {
    return std::bit_cast<Half8>((rounded(floats.a) >> 16) | (rounded(floats.b) & 0xffff0000u));
  }

 private:
  // The result is in the upper half; the lower half is garbage.
  static Bits4 rounded(Float4 value) {
    const auto bits = std::bit_cast<Bits4>(value);
    return is_number(bits) ? bits + 0x7fffu + ((bits >> 16) & 1u) : all(0x7fc00000u);
  }
};

/// float16 on any CPU, from IEEE 754's definition.
struct PortableFloat16Format {
  static Float8 widen(Half8 halves) {
    const auto pairs = std::bit_cast<Bits4>(halves);
    return {widened(pairs & 0xffffu), widened(pairs >> 16)};
  }

  static Half8 narrow(const Float8& floats) {
    return std::bit_cast<Half8>(narrowed(floats.a) | (narrowed(floats.b) << 16));
  }

 private:
  static Float4 widened(Bits4 half) {
    const Bits4 magnitude = half & 0x7fffu;
    // Exponent and mantissa move to their new places. Adding 224 to the bias and removing 112 makes the largest
    // exponent infinity or NaN.
    const Float4 normal = std::bit_cast<Float4>((magnitude << 13) + (224u << 23)) * 0x1p-112f;
    // Below the normal range the mantissa counts units of 2^-24, the last digit of 0.5: subtracting that normalises it.
    const Float4 subnormal = std::bit_cast<Float4>(magnitude | 0x3f000000u) - 0.5f;
    const auto value = std::bit_cast<Bits4>(magnitude < all(0x0400u) ? subnormal : normal);
    return std::bit_cast<Float4>(value | ((half & 0x8000u) << 16));
  }

  static Bits4 narrowed(Float4 value) {
    const auto bits = std::bit_cast<Bits4>(value);
    const Bits4 magnitude = bits & 0x7fffffffu;
    // Rounding up may carry into the exponent, which is correct; from 65520 on the result is infinity.
    const Bits4 rounded = ((magnitude + 0x0fffu + ((magnitude >> 13) & 1u)) >> 13) - (112u << 10);
    const Bits4 normal = magnitude < all(0x477ff000u) ? rounded : all(0x7c00u);
    // Adding 0.5 rounds to units of 2^-24, its last digit.
    const Bits4 subnormal = std::bit_cast<Bits4>(std::bit_cast<Float4>(magnitude) + 0.5f) - 0x3f000000u;
    const Bits4 number = magnitude < all(0x38800000u) ? subnormal : normal;
    const Bits4 result = is_number(bits) ? number : all(0x7e00u);
    return result | ((bits & 0x80000000u) >> 16);
  }
};

#ifdef __aarch64__

/// float16 with the CPU's instructions.
struct Float16Format {
  static Float8 widen(Half8 halves) {
    const auto both = std::bit_cast<float16x8_t>(halves);
    return {vcvt_f32_f16(vget_low_f16(both)), vcvt_high_f32_f16(both)};
  }

  static Half8 narrow(const Float8& floats) {
    return std::bit_cast<Half8>(vcvt_high_f16_f32(vcvt_f16_f32(floats.a), floats.b));
  }
};

#else

using Float16Format = PortableFloat16Format;

#endif

}  // namespace lockstep::detail
