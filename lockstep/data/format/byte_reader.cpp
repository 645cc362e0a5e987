#include "lockstep/data/format/byte_reader.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <utility>

#include "lockstep/data/errors.h"
#include "lockstep/data/format/file_error.h"
#include "lockstep/data/format/zlib_stream.h"

namespace lockstep::data {
namespace {

constexpr std::array<std::string_view, 3> kCompressions{"", "ZLIB", "GZIP"};  // in the order of Compression

}  // namespace

std::string_view to_string(Compression compression) { return kCompressions.at(static_cast<std::size_t>(compression)); }

Compression compression_named(std::string_view name) {
  const auto* found = std::ranges::find(kCompressions, name == "NONE" ? "" : name);
  if (found != kCompressions.end()) return static_cast<Compression>(found - kCompressions.begin());
  throw InvalidArgument(errors::kBadOption,
                        {.what = str("compression must be \"\", \"NONE\", \"ZLIB\" or \"GZIP\", got \"", name, "\""),
                         .help = "name the compression that the file has"});
}

ByteReader::ByteReader(std::string path, Compression compression, std::size_t buffer_bytes, Descriptor file,
                       std::string_view memory)
    : path_(std::move(path)),
      file_(std::move(file)),
      memory_(memory),
      inflater_(compression == Compression::None ? nullptr : std::make_unique<Inflater>(compression, path_)),
      buffer_(std::make_unique_for_overwrite<char[]>(std::max<std::size_t>(buffer_bytes, 1))),
      capacity_(std::max<std::size_t>(buffer_bytes, 1)) {}

ByteReader::ByteReader(const std::string& path, Compression compression, std::size_t buffer_bytes)
    : ByteReader(path, compression, buffer_bytes, open_file("open", path, O_RDONLY), {}) {
  ::posix_fadvise(file_.get(), 0, 0, POSIX_FADV_SEQUENTIAL);  // only a hint
}

ByteReader ByteReader::over_memory(std::string name, std::string_view bytes, Compression compression,
                                   std::size_t buffer_bytes) {
  return ByteReader(std::move(name), compression, buffer_bytes, Descriptor(), bytes);
}

ByteReader::ByteReader(ByteReader&&) noexcept = default;
ByteReader::~ByteReader() = default;

std::size_t ByteReader::read_raw(char* out, std::size_t size) {
  if (!file_) {
    const std::size_t count = std::min(size, memory_.size() - memory_position_);
    memory_.copy(out, count, memory_position_);
    memory_position_ += count;
    return count;
  }
  for (;;) {
    const ssize_t count = ::read(file_.get(), out, size);
    if (count >= 0) return static_cast<std::size_t>(count);
    if (errno != EINTR) throw_file_error("read", path_, errno);
  }
}

std::size_t ByteReader::read_some(char* out, std::size_t size) {
  if (inflater_ == nullptr) return read_raw(out, size);
  return inflater_->read(out, size, [this](char* into, std::size_t room) { return read_raw(into, room); });
}

void ByteReader::grow() {
  auto larger = std::make_unique_for_overwrite<char[]>(2 * capacity_);
  std::memcpy(larger.get(), buffer_.get(), end_);
  buffer_ = std::move(larger);
  capacity_ *= 2;
}

void ByteReader::fill(std::size_t wanted) {
  if (begin_ > 0) {
    std::memmove(buffer_.get(), buffer_.get() + begin_, end_ - begin_);
    buffer_offset_ += begin_;
    end_ -= begin_;
    begin_ = 0;
  }
  while (end_ < wanted) {
    if (end_ == capacity_) grow();
    const std::size_t count = read_some(buffer_.get() + end_, capacity_ - end_);
    if (count == 0) break;
    end_ += count;
  }
}

std::optional<std::uint64_t> ByteReader::raw_size() const {
  if (!file_) return memory_.size();
  struct stat status {};
  if (::fstat(file_.get(), &status) != 0 || !S_ISREG(status.st_mode)) return std::nullopt;
  return static_cast<std::uint64_t>(status.st_size);
}

void ByteReader::raw_seek(std::uint64_t offset) {
  if (!file_) {
    memory_position_ = static_cast<std::size_t>(offset);
  } else if (::lseek(file_.get(), static_cast<off_t>(offset), SEEK_SET) < 0) {
    throw_file_error("seek in", path_, errno);
  }
}

std::optional<std::uint64_t> ByteReader::remaining() const {
  if (inflater_ != nullptr) return std::nullopt;
  const auto size = raw_size();
  if (!size) return std::nullopt;
  return *size - std::min(*size, offset());
}

std::uint64_t ByteReader::skip(std::uint64_t count) {
  if (count <= end_ - begin_) {
    begin_ += static_cast<std::size_t>(count);
    return count;
  }
  if (const auto left = remaining()) {
    const std::uint64_t step = std::max<std::uint64_t>(std::min(count, *left), end_ - begin_);
    const std::uint64_t target = offset() + step;
    raw_seek(target);
    buffer_offset_ = target;
    begin_ = end_ = 0;
    return step;
  }
  std::uint64_t skipped = 0;
  while (skipped < count) {
    const std::uint64_t step = std::min<std::uint64_t>(peek(1).size(), count - skipped);
    if (step == 0) break;
    consume(static_cast<std::size_t>(step));
    skipped += step;
  }
  return skipped;
}

void ByteReader::seek(std::uint64_t target) {
  if (target >= buffer_offset_ && target <= buffer_offset_ + end_) {
    begin_ = static_cast<std::size_t>(target - buffer_offset_);
    return;
  }
  if (target < offset()) {
    raw_seek(0);
    if (inflater_ != nullptr) inflater_->restart();
    buffer_offset_ = 0;
    begin_ = end_ = 0;
  }
  const std::uint64_t distance = target - offset();
  if (skip(distance) < distance) {
    throw OutOfRange(errors::kRecord,
                     {.what = str("byte ", target, " is past the end of ", path_),
                      .seen = str("the file ends at byte ", offset()),
                      .help = "read the file from its start: it was changed since the position was saved"});
  }
}

}  // namespace lockstep::data
