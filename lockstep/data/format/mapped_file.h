#pragma once

#include <cstddef>
#include <cstdint>
#include <limits>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "lockstep/base/export.h"

namespace lockstep::data {

/// A file mapped into memory: pages are read on first use and shared between processes. Copies share the memory;
/// writing to it changes only this mapping, never the file. The file must not be shortened meanwhile: the operating
/// system kills a process that reads past the new end.
class LOCKSTEP_EXPORT MappedFile {
 public:
  /// NotFound or FailedPrecondition if the file cannot be opened or is not a regular file.
  explicit MappedFile(std::string path);
  /// Zeros in place of a file of this size; `path` is for messages.
  MappedFile(std::string path, std::size_t size);

  /// The contents, to read or to change in memory only.
  std::string_view bytes() const { return {memory_.get(), size_}; }
  char* data() { return memory_.get(); }
  /// The file.
  const std::string& path() const { return path_; }

 private:
  void map(int file, int flags);

  std::string path_;
  std::shared_ptr<char> memory_;
  std::size_t size_ = 0;
};

/// The bytes of all elements; nothing on overflow of 63 bits, even if some extent is 0.
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

/// A little-endian number.
inline std::uint64_t little_endian(std::string_view bytes) {
  std::uint64_t value = 0;
  for (std::size_t i = bytes.size(); i > 0; --i) value = (value << 8) | static_cast<unsigned char>(bytes[i - 1]);
  return value;
}

}  // namespace lockstep::data
