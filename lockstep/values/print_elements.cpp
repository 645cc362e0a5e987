#include "lockstep/values/print_elements.h"

#include <c10/util/BFloat16.h>
#include <c10/util/Half.h>
#include <c10/util/TypeCast.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <limits>
#include <optional>

#include "lockstep/base/text.h"
#include "lockstep/values/float_text.h"

namespace lockstep::detail {
namespace {

constexpr int kMaxFraction = 8;          // numpy's default precision
constexpr double kMinFixed = 1e-4;       // arrays with smaller numbers use exponents,
constexpr double kMaxFixedRatio = 1000;  // and if magnitudes differ by more than this

/// From here on arrays use exponents: not every integer is representable any more.
double max_fixed(at::ScalarType dtype) {
  switch (dtype) {
    case at::kBFloat16: return 1e2;
    case at::kHalf: return 1e3;
    case at::kFloat: return 1e6;
    default: return 1e8;
  }
}

/// A floating number, with the data to find the fewest digits that round-trip in its own type.
struct Real {
  double value;
  double brief;  // a number with fewer digits that is equal in a 16-bit type
  bool single;   // it came from a float32
};

/// The number with the fewest decimal digits that equals `value` in a 16-bit type.
template <class Small>
double fewest_digits(double value) {
  const auto rounded = [](double x) { return static_cast<float>(c10::convert<Small>(static_cast<float>(x))); };
  for (int digits = 0; digits <= std::numeric_limits<float>::max_digits10; ++digits) {
    std::array<char, 64> text{};
    const auto end =
        std::to_chars(text.data(), text.data() + text.size(), value, std::chars_format::scientific, digits);
    double candidate = 0;
    std::from_chars(text.data(), end.ptr, candidate);
    if (rounded(candidate) == rounded(value)) return candidate;
  }
  return value;
}

Real real_of(const at::Scalar& element, at::ScalarType dtype) {
  const double value = element.toDouble();
  if (!std::isfinite(value)) return {value, value, false};
  if (dtype == at::kHalf) return {value, fewest_digits<c10::Half>(value), false};
  if (dtype == at::kBFloat16) return {value, fewest_digits<c10::BFloat16>(value), false};
  return {value, value, dtype != at::kDouble};
}

std::string chars(const Real& real, std::chars_format format, std::optional<int> precision = {}) {
  std::array<char, 512> text{};
  char* const begin = text.data();
  char* const end = begin + text.size();
  const std::to_chars_result result = precision     ? std::to_chars(begin, end, real.value, format, *precision)
                                      : real.single ? std::to_chars(begin, end, static_cast<float>(real.brief), format)
                                                    : std::to_chars(begin, end, real.brief, format);
  return {begin, result.ptr};
}

/// A number split into the digits before the point, after it (without trailing zeros) and the exponent ("+05").
struct Digits {
  std::string whole, fraction, exponent;
};

Digits cut(const std::string& text) {
  Digits digits;
  const std::size_t e = text.find('e');
  const std::string mantissa = text.substr(0, e);
  if (e != std::string::npos) digits.exponent = text.substr(e + 1);
  const std::size_t point = mantissa.find('.');
  digits.whole = mantissa.substr(0, point);
  if (point != std::string::npos) digits.fraction = mantissa.substr(point + 1);
  digits.fraction.erase(digits.fraction.find_last_not_of('0') + 1);
  return digits;
}

Digits digits_of(const Real& real, std::chars_format format) {
  const Digits shortest = cut(chars(real, format));
  return shortest.fraction.size() <= kMaxFraction ? shortest : cut(chars(real, format, kMaxFraction));
}

std::string scalar_text(const Real& real, at::ScalarType dtype) {
  if (real.single) return float_text(static_cast<float>(real.value));
  return dtype == at::kHalf || dtype == at::kBFloat16 ? float_text(real.brief, max_fixed(dtype))
                                                      : float_text(real.value);
}

void align_right(std::vector<std::string>& texts) {
  std::size_t width = 0;
  for (const std::string& text : texts) width = std::max(width, text.size());
  for (std::string& text : texts) text.insert(0, width - text.size(), ' ');
}

bool needs_exponents(const std::vector<Real>& reals, at::ScalarType dtype) {
  double smallest = std::numeric_limits<double>::infinity();
  double largest = 0;
  for (const Real& real : reals) {
    const double magnitude = std::abs(real.value);
    if (!std::isfinite(magnitude) || magnitude == 0) continue;
    smallest = std::min(smallest, magnitude);
    largest = std::max(largest, magnitude);
  }
  const double min_fixed = dtype == at::kFloat ? static_cast<double>(static_cast<float>(kMinFixed)) : kMinFixed;
  return largest > 0 && (largest >= max_fixed(dtype) || smallest < min_fixed || largest / smallest > kMaxFixedRatio);
}

/// All with as many digits as the longest: blanks pad a fixed fraction, zeros one with an exponent.
std::vector<std::string> real_texts(const std::vector<Real>& reals, at::ScalarType dtype) {
  const bool exponents = needs_exponents(reals, dtype);
  const auto format = exponents ? std::chars_format::scientific : std::chars_format::fixed;
  std::size_t fraction = 0, exponent = 0;
  for (const Real& real : reals) {
    if (!std::isfinite(real.value)) continue;
    const Digits digits = digits_of(real, format);
    fraction = std::max(fraction, digits.fraction.size());
    exponent = std::max(exponent, digits.exponent.size());
  }
  std::vector<std::string> texts;
  texts.reserve(reals.size());
  for (const Real& real : reals) {
    if (!std::isfinite(real.value)) {
      texts.push_back(float_text(real.value));
    } else if (exponents) {
      const Digits digits = cut(chars(real, format, static_cast<int>(fraction)));
      const std::string zeros(fraction - digits.fraction.size(), '0');
      const std::string wide(exponent - digits.exponent.size(), '0');
      texts.push_back(
          str(digits.whole, '.', digits.fraction, zeros, 'e', digits.exponent[0], wide, digits.exponent.substr(1)));
    } else {
      const Digits digits = digits_of(real, format);
      texts.push_back(str(digits.whole, '.', digits.fraction, std::string(fraction - digits.fraction.size(), ' ')));
    }
  }
  align_right(texts);
  return texts;
}

}  // namespace

std::string scalar_text(const at::Scalar& element, at::ScalarType dtype) {
  if (element.isBoolean()) return element.toBool() ? "True" : "False";
  if (element.isComplex()) {
    const auto value = element.toComplexDouble();
    const bool single = dtype != at::kComplexDouble;
    const std::string imaginary = scalar_text(Real{value.imag(), value.imag(), single}, dtype);
    return str('(', scalar_text(Real{value.real(), value.real(), single}, dtype), imaginary[0] == '-' ? "" : "+",
               imaginary, "j)");
  }
  if (element.isFloatingPoint()) return scalar_text(real_of(element, dtype), dtype);
  return dtype == at::kUInt64 ? str(element.toUInt64()) : str(element.toLong());
}

std::vector<std::string> element_texts(const std::vector<at::Scalar>& elements, at::ScalarType dtype) {
  if (at::isFloatingType(dtype)) {
    std::vector<Real> reals;
    reals.reserve(elements.size());
    for (const at::Scalar& element : elements) reals.push_back(real_of(element, dtype));
    return real_texts(reals, dtype);
  }
  std::vector<std::string> texts;
  texts.reserve(elements.size());
  for (const at::Scalar& element : elements) texts.push_back(scalar_text(element, dtype));
  if (dtype == at::kBool) texts.push_back("False");  // numpy reserves space for it, present or not
  align_right(texts);
  texts.resize(elements.size());
  return texts;
}

}  // namespace lockstep::detail
