#include "lockstep/train/logs/line_file.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <filesystem>
#include <system_error>
#include <utility>

#include "lockstep/base/file_text.h"
#include "lockstep/base/tune_request.h"
#include "lockstep/data/format/atomic_file.h"
#include "lockstep/data/format/file_error.h"

namespace lockstep::train::detail {

LineFile::LineFile(std::string path, const std::function<bool(std::string_view, std::int64_t)>& keeps)
    : path_(std::move(path)) {
  if (is_being_tuned()) return;
  if (const auto folder = std::filesystem::path(path_).parent_path(); !folder.empty()) {
    std::error_code failed;
    std::filesystem::create_directories(folder, failed);
    if (failed) data::throw_file_error("create the folder", folder.string(), failed.value());
  }
  open();
  const std::string text = content();
  std::size_t kept = 0;
  for (std::int64_t number = 0; kept < text.size(); ++number) {
    const std::size_t end = text.find('\n', kept);
    if (end == text.npos || !keeps(std::string_view(text).substr(kept, end - kept), number)) break;
    kept = end + 1;
  }
  cut(static_cast<std::int64_t>(kept));
}

void LineFile::open() { file_ = data::open_file("open", path_, O_WRONLY | O_CREAT | O_APPEND); }

void LineFile::cut(std::int64_t size) {
  if (::ftruncate(file_.get(), size) != 0) data::throw_file_error("cut", path_, errno);
  size_ = size;
}

void LineFile::append(std::string_view line) {
  if (is_being_tuned()) return;
  std::string bytes(line);
  bytes += '\n';
  for (std::string_view left = bytes; !left.empty();) {
    const ssize_t count = ::write(file_.get(), left.data(), left.size());
    if (count >= 0) {
      left.remove_prefix(static_cast<std::size_t>(count));
    } else if (const int error = errno; error != EINTR) {
      if (left.size() < bytes.size()) cut(size_);
      data::throw_file_error("write to", path_, error);
    }
  }
  size_ += static_cast<std::int64_t>(bytes.size());
}

void LineFile::replace(const std::string& content) {
  if (is_being_tuned()) return;
  data::AtomicFile file(path_, content.size());
  file.append(content);
  file.commit();
  open();
  size_ = static_cast<std::int64_t>(content.size());
}

std::string LineFile::content() const { return is_being_tuned() ? "" : file_text(path_); }

}  // namespace lockstep::train::detail
