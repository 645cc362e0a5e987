#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

#include "lockstep/base/descriptor.h"

namespace lockstep::data {

/// Throws the error for a failed system call on a file: NotFound, ResourceExhausted (the disk is full) or
/// FailedPrecondition, depending on `error_number`; `action` is "open", "read", ...
[[noreturn]] void throw_file_error(const std::string& action, const std::string& path, int error_number);

/// Opens a file; `action` is "open" or "create", `flags` are open(2)'s; O_CLOEXEC is added.
Descriptor open_file(const std::string& action, const std::string& path, int flags);

/// "record 3 at byte 4096 of a.tfrecord": the same wording in all readers. Both count from 0.
std::string record_place(std::uint64_t record, std::uint64_t offset, const std::string& path);

/// The first bytes as hexadecimal digits.
std::string hex_bytes(std::string_view bytes, std::size_t at_most = 16);

/// The text in quotes, truncated, with unprintable characters as \xHH.
std::string in_quotes(std::string_view text, std::size_t at_most = 40);

}  // namespace lockstep::data
