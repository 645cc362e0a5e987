#pragma once

#include <memory>
#include <string>
#include <string_view>

#include "lockstep/base/descriptor.h"
#include "lockstep/base/export.h"
#include "lockstep/data/format/reader_options.h"

namespace lockstep::data {

class Deflater;

/// Writes bytes to a new file (replacing an old one), compressed if asked. Buffers them.
class LOCKSTEP_EXPORT ByteWriter {
 public:
  /// `level` of compression: 0 to 9, or -1 for zlib's default.
  explicit ByteWriter(std::string path, Compression compression = Compression::None, int level = -1);

  ByteWriter(ByteWriter&& other) noexcept;
  ByteWriter& operator=(ByteWriter&&) = delete;
  /// Closes the file; an error is logged, since a destructor cannot throw.
  ~ByteWriter();

  /// Adds bytes at the end.
  void append(std::string_view bytes);

  /// Makes everything written so far visible to readers of the file.
  void flush();

  /// Writes what is buffered and closes the file. Nothing can be appended afterwards; a second call does nothing.
  void close();

  /// The file.
  const std::string& path() const { return path_; }

 private:
  void write_out();

  std::string path_;
  std::unique_ptr<Deflater> deflater_;
  Descriptor file_;
  std::string buffer_;
};

}  // namespace lockstep::data
