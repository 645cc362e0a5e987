#pragma once

#include <cstdint>
#include <optional>
#include <string_view>
#include <vector>

#include "lockstep/data/format/safetensors.h"

namespace lockstep::data {

inline constexpr std::string_view kSafetensorsMetadata = "__metadata__";
inline constexpr std::size_t kSafetensorsLength = 8;  ///< bytes of the header's length
/// Python's own limit.
inline constexpr std::uint64_t kLongestSafetensorsHeader = 100'000'000;
inline constexpr std::size_t kMostSafetensorsDimensions = 64;

std::optional<SafetensorsType> safetensors_type_named(std::string_view name);

/// The bytes of a tensor; nothing if they do not fit into 63 bits, whatever extents of 0 there are.
std::optional<std::uint64_t> safetensors_bytes(SafetensorsType type, const std::vector<std::int64_t>& shape);

}  // namespace lockstep::data
