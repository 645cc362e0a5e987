#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "lockstep/base/descriptor.h"
#include "lockstep/base/export.h"
#include "lockstep/data/format/reader_options.h"

namespace lockstep::data {

class Inflater;

/// Reads the bytes of a file in order, decompressing them. Owns the file and one buffer and returns views into it; the
/// buffer grows only as bytes actually arrive, never because the file claims a size. Offsets count decompressed bytes.
///
/// Not thread-safe.
class LOCKSTEP_EXPORT ByteReader {
 public:
  /// NotFound or FailedPrecondition if the file cannot be opened.
  explicit ByteReader(const std::string& path, Compression compression = Compression::None,
                      std::size_t buffer_bytes = kReadBuffer);

  /// Reads bytes in memory, which must outlive the reader; `name` stands for the file in messages.
  static ByteReader over_memory(std::string name, std::string_view bytes, Compression compression = Compression::None,
                                std::size_t buffer_bytes = kReadBuffer);

  ByteReader(ByteReader&& other) noexcept;
  ByteReader& operator=(ByteReader&&) = delete;
  ~ByteReader();

  /// All buffered bytes from the current position on: at least `wanted`, fewer only at the end of the file. The view
  /// holds until the next call of peek, skip or seek.
  std::string_view peek(std::size_t wanted) {
    if (end_ - begin_ < wanted) fill(wanted);
    return {buffer_.get() + begin_, end_ - begin_};
  }

  /// Skips bytes that peek returned.
  void consume(std::size_t count) { begin_ += count; }

  /// Skips up to `count` bytes, without reading them if the file can seek; returns how many there were.
  std::uint64_t skip(std::uint64_t count);

  /// Moves to an offset, forwards or backwards; OutOfRange if it is past the end.
  void seek(std::uint64_t offset);

  /// Bytes read so far, after decompression.
  std::uint64_t offset() const { return buffer_offset_ + begin_; }

  /// The number of bytes from here to the end, if known (not for compressed files and pipes).
  std::optional<std::uint64_t> remaining() const;

  /// The file.
  const std::string& path() const { return path_; }

 private:
  ByteReader(std::string path, Compression compression, std::size_t buffer_bytes, Descriptor file,
             std::string_view memory);

  void fill(std::size_t wanted);
  void grow();
  std::size_t read_raw(char* out, std::size_t size);
  std::size_t read_some(char* out, std::size_t size);
  std::optional<std::uint64_t> raw_size() const;
  void raw_seek(std::uint64_t offset);

  std::string path_;
  Descriptor file_;  // not open if the bytes are in memory
  std::string_view memory_;
  std::size_t memory_position_ = 0;
  std::unique_ptr<Inflater> inflater_;

  std::unique_ptr<char[]> buffer_;
  std::size_t capacity_;
  std::size_t begin_ = 0;  // the unread part of the buffer
  std::size_t end_ = 0;
  std::uint64_t buffer_offset_ = 0;  // offset in the file of the buffer's first byte
};

}  // namespace lockstep::data
