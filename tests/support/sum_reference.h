#pragma once

#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <random>

#include "lockstep/comm/dtype.h"

/// Reference sums of each dtype, without optimization: one element at a time, and the 16-bit types by their definition
/// in double arithmetic.
namespace lockstep::reference {

// A template and free of references: AddressSanitizer makes functions with addressable locals a hundred times slower.
template <int mantissa_bits, int least_exponent>  // least_exponent: of a normal number
struct HalfForm {
  static constexpr int kInfinity = 0x7fff >> mantissa_bits << mantissa_bits;

  static double decode(std::uint16_t bits) {
    const int exponent = (bits & 0x7fff) >> mantissa_bits;
    const int mantissa = bits & ((1 << mantissa_bits) - 1);
    const double sign = (bits & 0x8000) != 0 ? -1 : 1;
    if ((bits & 0x7fff) > kInfinity) return std::numeric_limits<double>::quiet_NaN();
    if ((bits & 0x7fff) == kInfinity) return sign * std::numeric_limits<double>::infinity();
    if (exponent == 0) return sign * std::ldexp(mantissa, least_exponent - mantissa_bits);
    return sign * std::ldexp((1 << mantissa_bits) + mantissa, least_exponent - mantissa_bits + exponent - 1);
  }

  static std::uint16_t encode(double value) {
    const int sign = std::signbit(value) ? 0x8000 : 0;
    const double size = std::abs(value);
    if (std::isnan(value)) return static_cast<std::uint16_t>(kInfinity | 1);
    if (std::isinf(value)) return static_cast<std::uint16_t>(sign | kInfinity);
    if (size == 0) return static_cast<std::uint16_t>(sign);
    const int own_exponent = std::ilogb(size);
    const int exponent = own_exponent < least_exponent ? least_exponent : own_exponent;
    const double units = std::nearbyint(std::ldexp(size, mantissa_bits - exponent));  // ties to even
    // The bits of numbers are ordered by counting units across the exponents.
    const double bits = units + (exponent - least_exponent) * (1 << mantissa_bits);
    return static_cast<std::uint16_t>(sign | (bits < kInfinity ? static_cast<int>(bits) : kInfinity));
  }
};

template <class T>
struct Float {
  using Stored = T;
  static T stored(double value) { return static_cast<T>(value); }
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

template <class Form>
struct Half {
  using Stored = std::uint16_t;
  static Stored stored(double value) { return Form::encode(value); }
  static Stored add(Stored a, Stored b) { return Form::encode(Form::decode(a) + Form::decode(b)); }
  static Stored divide(Stored a, std::int64_t n) { return Form::encode(Form::decode(a) / static_cast<double>(n)); }
  static bool same(Stored a, Stored b) {
    return a == b || (std::isnan(Form::decode(a)) && std::isnan(Form::decode(b)));
  }
  static Stored random(std::mt19937_64& generator) {
    return static_cast<Stored>(generator());
  }  // all values,
     // including NaN
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
struct Of<Dtype::Float16> : Half<HalfForm<10, -14>> {};
template <>
struct Of<Dtype::BFloat16> : Half<HalfForm<7, -126>> {};
template <>
struct Of<Dtype::Float32> : Float<float> {};
template <>
struct Of<Dtype::Float64> : Float<double> {};

}  // namespace lockstep::reference
