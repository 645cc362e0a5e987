#include "lockstep/data/format/csv_convert.h"

#include <charconv>
#include <clocale>
#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <string>
#include <system_error>

namespace lockstep::data {
namespace {

std::string_view without_blanks(std::string_view text) {
  const auto is_blank = [](char c) { return c == ' ' || c == '\t'; };
  while (!text.empty() && is_blank(text.front())) text.remove_prefix(1);
  while (!text.empty() && is_blank(text.back())) text.remove_suffix(1);
  return text;
}

template <class T>
std::errc parse(std::string_view text, T& value) {
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc{}) return error;
  return end == text.data() + text.size() ? std::errc{} : std::errc::invalid_argument;
}

/// Of a decimal number that no float can hold: whether it is too small, not too large.
bool is_tiny(std::string_view text) {
  static const locale_t plain = ::newlocale(LC_ALL_MASK, "C", nullptr);  // in others a comma may be the decimal point
  return std::abs(::strtod_l(std::string(text).c_str(), nullptr, plain)) < 1;
}

template <class T>
std::optional<CsvValue> number(std::string_view text) {
  text = without_blanks(text);
  if (text.size() > 1 && text[0] == '+' && text[1] != '-') text.remove_prefix(1);
  T value{};
  const std::errc error = parse(text, value);
  if (error == std::errc{}) return value;
  if constexpr (std::is_floating_point_v<T>) {
    // Too small is 0, as in TensorFlow. Too large is infinity there and an error here: infinity can be
    // written as such.
    if (error == std::errc::result_out_of_range && is_tiny(text))
      return std::copysign(T{0}, text[0] == '-' ? T{-1} : T{1});
  }
  return std::nullopt;
}

}  // namespace

std::optional<CsvValue> csv_value(std::string_view text, CsvType type) {
  switch (type) {
    case CsvType::Int32: return number<std::int32_t>(text);
    case CsvType::Int64: return number<std::int64_t>(text);
    case CsvType::Float32: return number<float>(text);
    case CsvType::Float64: return number<double>(text);
    case CsvType::String: return CsvValue(text);
  }
  return std::nullopt;
}

}  // namespace lockstep::data
