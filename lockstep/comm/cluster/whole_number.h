#pragma once

#include <cstdint>
#include <limits>
#include <optional>
#include <string_view>

namespace lockstep {

/// Reads a whole number as programs write it into environment variables: " 12 ", "-1", "+3", "1_000". Nothing else, and no
/// number beyond 64 bits.
inline std::optional<std::int64_t> parse_whole_number(std::string_view text) {
  const auto is_blank = [](char c) { return c == ' ' || (c >= '\t' && c <= '\r'); };
  while (!text.empty() && is_blank(text.front())) text.remove_prefix(1);
  while (!text.empty() && is_blank(text.back())) text.remove_suffix(1);
  const bool negative = !text.empty() && text.front() == '-';
  if (!text.empty() && (text.front() == '-' || text.front() == '+')) text.remove_prefix(1);
  std::int64_t value = 0;
  bool after_digit = false;
  for (const char c : text) {
    if (c == '_' && after_digit) {
      after_digit = false;
      continue;
    }
    if (c < '0' || c > '9') return std::nullopt;
    after_digit = true;
    if (value > (std::numeric_limits<std::int64_t>::max() - (c - '0')) / 10) return std::nullopt;
    value = 10 * value + (c - '0');
  }
  if (!after_digit) return std::nullopt;
  return negative ? -value : value;
}

}  // namespace lockstep
