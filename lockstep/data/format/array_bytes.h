#pragma once

#include <cstddef>
#include <cstdint>
#include <limits>
#include <optional>
#include <string_view>
#include <vector>

// What the formats of arrays share.
namespace lockstep::data {

/// The bytes of all elements; nothing if they do not fit into 63 bits, whatever extents of 0 there are.
inline std::optional<std::uint64_t> array_bytes(const std::vector<std::int64_t>& shape, std::size_t item_size) {
  std::uint64_t bytes = item_size;
  bool empty = false;
  for (const std::int64_t extent : shape) {
    if (extent < 0) return std::nullopt;
    empty = empty || extent == 0;
    if (extent > 0 && __builtin_mul_overflow(bytes, static_cast<std::uint64_t>(extent), &bytes)) return std::nullopt;
  }
  if (bytes > static_cast<std::uint64_t>(std::numeric_limits<std::int64_t>::max())) return std::nullopt;
  return empty ? 0 : bytes;
}

/// A number as it lies in a file.
inline std::uint64_t little_endian(std::string_view bytes) {
  std::uint64_t value = 0;
  for (std::size_t i = bytes.size(); i > 0; --i) value = (value << 8) | static_cast<unsigned char>(bytes[i - 1]);
  return value;
}

}  // namespace lockstep::data
