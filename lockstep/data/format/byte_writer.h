#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

#include "lockstep/base/export.h"
#include "lockstep/data/format/compression.h"

namespace lockstep::data {

class Deflater;

/// Writes bytes to a new file (an old one of that name is replaced), compressed if asked. Collects them in a buffer.
class LOCKSTEP_EXPORT ByteWriter {
 public:
  /// `level` of compression: 0 to 9, or -1 for zlib's usual one.
  explicit ByteWriter(std::string path, Compression compression = Compression::None, int level = -1);

  ByteWriter(ByteWriter&& other) noexcept;
  ByteWriter& operator=(ByteWriter&&) = delete;
  /// Closes; an error that nobody can be told any more is logged.
  ~ByteWriter();

  void append(std::string_view bytes);

  /// Makes all that was written so far visible to readers of the file.
  void flush();

  /// Writes what is left and closes the file. Nothing can be appended afterwards; a second call does nothing.
  void close();

  std::uint64_t bytes_appended() const { return appended_; }
  const std::string& path() const { return path_; }

 private:
  void emit(std::string_view bytes);
  void write_out();

  std::string path_;
  int file_;
  std::unique_ptr<Deflater> deflater_;
  std::string buffer_;
  std::uint64_t appended_ = 0;
};

}  // namespace lockstep::data
