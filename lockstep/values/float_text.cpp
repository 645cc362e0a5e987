#include "lockstep/values/float_text.h"

#include <array>
#include <charconv>
#include <cmath>

namespace lockstep {
namespace {

template <class Float>
std::string shortest(Float value) {
  if (std::isnan(value)) return "nan";
  if (std::isinf(value)) return value > 0 ? "inf" : "-inf";
  const Float magnitude = std::abs(value);
  const bool fixed = magnitude == 0 || (magnitude >= Float(1e-4) && magnitude < Float(1e16));
  std::array<char, 64> text{};
  const auto end = std::to_chars(text.data(), text.data() + text.size(), value,
                                 fixed ? std::chars_format::fixed : std::chars_format::scientific);
  std::string result(text.data(), end.ptr);
  if (fixed && result.find('.') == std::string::npos) result += ".0";
  return result;
}

}  // namespace

std::string float_text(double value) {
  return shortest(value);
}
std::string float_text(float value) {
  return shortest(value);
}

}  // namespace lockstep
