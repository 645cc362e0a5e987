#include "lockstep/values/float_text.h"

#include <array>
#include <charconv>
#include <cmath>

namespace lockstep {
namespace {

template <class Float>
std::string shortest(Float value, double exponent_from) {
  if (std::isnan(value)) return "nan";
  if (std::isinf(value)) return value > 0 ? "inf" : "-inf";
  const double magnitude = std::abs(static_cast<double>(value));
  const bool fixed = magnitude == 0 || (magnitude >= 1e-4 && magnitude < exponent_from);
  std::array<char, 64> text{};
  const auto end = std::to_chars(text.data(), text.data() + text.size(), value,
                                 fixed ? std::chars_format::fixed : std::chars_format::scientific);
  std::string result(text.data(), end.ptr);
  if (fixed && result.find('.') == std::string::npos) result += ".0";
  return result;
}

}  // namespace

std::string float_text(double value, double exponent_from) { return shortest(value, exponent_from); }

std::string float_text(float value) { return shortest(value, 1e6); }

}  // namespace lockstep
