#pragma once

#include <cstdint>
#include <string_view>

#include "lockstep/base/export.h"

namespace lockstep {

/// CRC32C (Castagnoli) of `data`, with the processor's instruction if it has one. With `before` = the checksum of
/// preceding bytes, the result covers both.
LOCKSTEP_EXPORT std::uint32_t crc32c(std::string_view data, std::uint32_t before = 0);

/// The form of checksums in files: without it the checksum of bytes that contain a checksum would have a pattern.
constexpr std::uint32_t mask_crc32c(std::uint32_t crc) { return ((crc >> 15) | (crc << 17)) + 0xa282ead8U; }

/// The implementations, for tests that compare them.
namespace detail {
bool has_crc32c_instruction();
std::uint32_t crc32c_by_instruction(std::string_view data, std::uint32_t before);  ///< only if the processor supports
                                                                                   ///< it
std::uint32_t crc32c_by_table(std::string_view data, std::uint32_t before);
}  // namespace detail

}  // namespace lockstep
