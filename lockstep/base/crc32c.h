#pragma once

#include <cstdint>
#include <string_view>

#include "lockstep/base/export.h"

namespace lockstep {

/// CRC32C (Castagnoli) of `data`, by the processor's own instruction where it has one. With `before` = the checksum of
/// what comes before `data`, the result is that of both.
LOCKSTEP_EXPORT std::uint32_t crc32c(std::string_view data, std::uint32_t before = 0);

/// The form in which files keep a checksum: the checksum of bytes that hold a checksum has no pattern then.
constexpr std::uint32_t mask_crc32c(std::uint32_t crc) { return ((crc >> 15) | (crc << 17)) + 0xa282ead8U; }

/// The ways to compute it, for tests that compare them.
namespace detail {
bool has_crc32c_instruction();
std::uint32_t crc32c_by_instruction(std::string_view data, std::uint32_t before);  ///< only if there is one
std::uint32_t crc32c_by_table(std::string_view data, std::uint32_t before);
}  // namespace detail

}  // namespace lockstep
