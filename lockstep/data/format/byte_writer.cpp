#include "lockstep/data/format/byte_writer.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <utility>

#include "lockstep/base/logging.h"
#include "lockstep/data/errors.h"
#include "lockstep/data/format/file_error.h"
#include "lockstep/data/format/zlib_stream.h"

namespace lockstep::data {
namespace {

constexpr std::size_t kBuffer = std::size_t{256} << 10;

}  // namespace

ByteWriter::ByteWriter(std::string path, Compression compression, int level)
    : path_(std::move(path)),
      deflater_(compression == Compression::None ? nullptr : std::make_unique<Deflater>(compression, level)),
      file_(open_file("create", path_, O_WRONLY | O_CREAT | O_TRUNC)) {
  buffer_.reserve(kBuffer);
}

ByteWriter::ByteWriter(ByteWriter&&) noexcept = default;

ByteWriter::~ByteWriter() {
  try {
    close();
  } catch (const Error& error) {
    log(Severity::Error, error.what());
  }
}

void ByteWriter::append(std::string_view bytes) {
  if (!file_) {
    throw FailedPrecondition(errors::kFile, {.what = str(path_, " is closed: nothing more can be written to it"),
                                             .help = "close the writer after the last record, or make a new one"});
  }
  if (deflater_ == nullptr) {
    buffer_.append(bytes);
  } else {
    deflater_->write(bytes, buffer_);
  }
  if (buffer_.size() >= kBuffer) write_out();
}

void ByteWriter::write_out() {
  std::string_view left = buffer_;
  while (!left.empty()) {
    const ssize_t count = ::write(file_.get(), left.data(), left.size());
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
  if (!file_) return;
  if (deflater_ != nullptr) deflater_->flush(buffer_);
  write_out();
}

void ByteWriter::close() {
  if (!file_) return;
  try {
    if (deflater_ != nullptr) deflater_->finish(buffer_);
    write_out();
  } catch (...) {
    file_.close();  // however it ends, the file is closed once
    throw;
  }
  if (const int error = file_.close(); error != 0) throw_file_error("close", path_, error);
}

}  // namespace lockstep::data
