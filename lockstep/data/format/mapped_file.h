#pragma once

#include <cstddef>
#include <string>
#include <string_view>

#include "lockstep/base/export.h"

namespace lockstep::data {

/// A file as memory: pages are read when they are first used, and shared between processes. The memory may be
/// written to, which changes only this mapping and never the file. The file must not be shortened meanwhile; the
/// operating system ends a process that reads past the new end.
class LOCKSTEP_EXPORT MappedFile {
 public:
  /// NotFound or FailedPrecondition if the file cannot be opened or is not a regular file.
  explicit MappedFile(std::string path);
  MappedFile(MappedFile&& other) noexcept;
  MappedFile& operator=(MappedFile&&) = delete;
  ~MappedFile();

  std::string_view bytes() const { return {data_, size_}; }
  const std::string& path() const { return path_; }

 private:
  std::string path_;
  const char* data_ = nullptr;
  std::size_t size_ = 0;
};

}  // namespace lockstep::data
