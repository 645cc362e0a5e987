#pragma once

#include <memory>
#include <string>
#include <string_view>

#include "lockstep/base/descriptor.h"
#include "lockstep/base/export.h"
#include "lockstep/data/format/reader_options.h"

namespace lockstep::data {

class Deflater;

/// Writes bytes to a new file (an old one of that name is replaced), compressed if asked. Collects them in a buffer.
class LOCKSTEP_EXPORT ByteWriter {
 public:
  /// `level` of compression: 0 to 9, or -1 for zlib's usual one.
  explicit ByteWriter(std::string path, Compression compression = Compression::None, int level = -1);

  ByteWriter(ByteWriter&& other) noexcept;
  ByteWriter& operator=(ByteWriter&&) = delete;
  /// Closes; an error is logged, since a destructor cannot throw.
  ~ByteWriter();

  /// Adds bytes at the end.
  void append(std::string_view bytes);

  /// Makes all that was written so far visible to readers of the file.
  void flush();

  /// Writes what is left and closes the file. Nothing can be appended afterwards; a second call does nothing.
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
