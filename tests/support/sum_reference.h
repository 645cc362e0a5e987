#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <random>

#include "lockstep/comm/dtype.h"

/// What sums of each dtype are, without any speed: one element at a time, and the 16-bit types by their definition in
/// double arithmetic.
namespace lockstep::reference {

struct HalfForm {
  int mantissa_bits;
  int least_exponent;  // of a normal number
};

inline double decode(std::uint16_t bits, HalfForm form) {
  const int exponent_bits = 15 - form.mantissa_bits;
  const int mantissa = bits & ((1 << form.mantissa_bits) - 1);
  const int exponent = (bits >> form.mantissa_bits) & ((1 << exponent_bits) - 1);
  const double sign = bits & 0x8000 ? -1 : 1;
  if (exponent == (1 << exponent_bits) - 1) {
    return mantissa ? std::numeric_limits<double>::quiet_NaN() : sign * std::numeric_limits<double>::infinity();
  }
  if (exponent == 0) return sign * std::ldexp(mantissa, form.least_exponent - form.mantissa_bits);
  return sign *
         std::ldexp((1 << form.mantissa_bits) + mantissa, form.least_exponent - form.mantissa_bits + exponent - 1);
}

inline std::uint16_t encode(double value, HalfForm form) {
  const int infinity = ((1 << (15 - form.mantissa_bits)) - 1) << form.mantissa_bits;
  const int sign = std::signbit(value) ? 0x8000 : 0;
  if (std::isnan(value)) return static_cast<std::uint16_t>(infinity | 1);
  const double size = std::abs(value);
  if (size == 0) return static_cast<std::uint16_t>(sign);
  if (std::isinf(size)) return static_cast<std::uint16_t>(sign | infinity);
  const int exponent = std::max(std::ilogb(size), form.least_exponent);
  const double units = std::nearbyint(std::ldexp(size, form.mantissa_bits - exponent));  // ties to even
  // Counting units across the exponents is how the bits of a number are ordered.
  const double bits = units + static_cast<double>(exponent - form.least_exponent) * (1 << form.mantissa_bits);
  return static_cast<std::uint16_t>(sign | static_cast<int>(std::min(bits, static_cast<double>(infinity))));
}

template <class T>
struct Float {
  using Stored = T;
  static T add(T a, T b) { return a + b; }
  static T divide(T a, std::int64_t n) { return a / static_cast<T>(n); }
  static bool same(T a, T b) { return std::memcmp(&a, &b, sizeof(T)) == 0 || (std::isnan(a) && std::isnan(b)); }
  static T random(std::mt19937_64& generator) {
    const auto mantissa = std::uniform_real_distribution<T>(-1, 1)(generator);
    return std::ldexp(mantissa, std::uniform_int_distribution<int>(-12, 12)(generator));
  }
};

template <class T>
struct Int {
  using Stored = T;
  static T add(T a, T b) {
    T result;
    (void)__builtin_add_overflow(a, b, &result);
    return result;
  }
  static bool same(T a, T b) { return a == b; }
  static T random(std::mt19937_64& generator) { return static_cast<T>(generator()); }
};

template <int mantissa_bits, int least_exponent>
struct Half {
  static constexpr HalfForm kForm{mantissa_bits, least_exponent};
  using Stored = std::uint16_t;
  static Stored add(Stored a, Stored b) { return encode(decode(a, kForm) + decode(b, kForm), kForm); }
  static Stored divide(Stored a, std::int64_t n) { return encode(decode(a, kForm) / static_cast<double>(n), kForm); }
  static bool is_nan(Stored a) { return std::isnan(decode(a, kForm)); }
  static bool same(Stored a, Stored b) { return a == b || (is_nan(a) && is_nan(b)); }
  static Stored random(std::mt19937_64& generator) { return static_cast<Stored>(generator()); }  // all of them, NaN too
};

template <Dtype dtype>
struct Of;

template <>
struct Of<Dtype::UInt8> : Int<std::uint8_t> {};
template <>
struct Of<Dtype::Int8> : Int<std::int8_t> {};
template <>
struct Of<Dtype::Int16> : Int<std::int16_t> {};
template <>
struct Of<Dtype::Int32> : Int<std::int32_t> {};
template <>
struct Of<Dtype::Int64> : Int<std::int64_t> {};
template <>
struct Of<Dtype::Float16> : Half<10, -14> {};
template <>
struct Of<Dtype::BFloat16> : Half<7, -126> {};
template <>
struct Of<Dtype::Float32> : Float<float> {};
template <>
struct Of<Dtype::Float64> : Float<double> {};

}  // namespace lockstep::reference
