#include "lockstep/data/format/byte_writer.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <utility>

#include "lockstep/base/error.h"
#include "lockstep/base/logging.h"
#include "lockstep/base/text.h"
#include "lockstep/data/format/file_error.h"
#include "lockstep/data/format/zlib_stream.h"

namespace lockstep::data {
namespace {

constexpr std::size_t kBuffer = std::size_t{256} << 10;

int open_for_writing(const std::string& path) {
  const int file = ::open(path.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666);
  if (file < 0) throw_file_error("create", path, errno);
  return file;
}

}  // namespace

ByteWriter::ByteWriter(std::string path, Compression compression, int level)
    : path_(std::move(path)),
      file_(-1),
      deflater_(compression == Compression::None ? nullptr : std::make_unique<Deflater>(compression, level)) {
  file_ = open_for_writing(path_);
  buffer_.reserve(kBuffer);
}

ByteWriter::ByteWriter(ByteWriter&& other) noexcept
    : path_(std::move(other.path_)),
      file_(std::exchange(other.file_, -1)),
      deflater_(std::move(other.deflater_)),
      buffer_(std::move(other.buffer_)),
      appended_(other.appended_) {}

ByteWriter::~ByteWriter() {
  try {
    close();
  } catch (const Error& error) {
    log(Severity::Error, error.what());
  }
}

void ByteWriter::append(std::string_view bytes) {
  if (file_ < 0) {
    throw FailedPrecondition(errors::kFile, {.what = str(path_, " was closed: nothing more can be written to it"),
                                             .help = "close the writer after the last record, or make a new one"});
  }
  if (deflater_ == nullptr) {
    emit(bytes);
  } else {
    deflater_->write(bytes, [this](std::string_view out) { emit(out); });
  }
  appended_ += bytes.size();
}

void ByteWriter::emit(std::string_view bytes) {
  if (buffer_.size() + bytes.size() > kBuffer) write_out();
  buffer_.append(bytes);
}

void ByteWriter::write_out() {
  std::string_view left = buffer_;
  while (!left.empty()) {
    const ssize_t count = ::write(file_, left.data(), left.size());
    if (count >= 0) {
      left.remove_prefix(static_cast<std::size_t>(count));
    } else if (errno != EINTR) {
      const int why = errno;
      buffer_.clear();  // a later close must not write the same bytes again
      throw_file_error("write to", path_, why);
    }
  }
  buffer_.clear();
}

void ByteWriter::flush() {
  if (file_ < 0) return;
  if (deflater_ != nullptr) deflater_->flush([this](std::string_view out) { emit(out); });
  write_out();
}

void ByteWriter::close() {
  if (file_ < 0) return;
  // However it ends, the file is closed once.
  const int file = file_;
  struct Closer {
    ByteWriter& writer;
    ~Closer() { writer.file_ = -1; }
  } closer{*this};
  try {
    if (deflater_ != nullptr) deflater_->finish([this](std::string_view out) { emit(out); });
    write_out();
  } catch (...) {
    ::close(file);
    throw;
  }
  if (::close(file) != 0) throw_file_error("close", path_, errno);
}

}  // namespace lockstep::data
