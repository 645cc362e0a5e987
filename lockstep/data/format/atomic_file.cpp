#include "lockstep/data/format/atomic_file.h"

#include <fcntl.h>
#include <pthread.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <csignal>
#include <ctime>
#include <filesystem>
#include <optional>
#include <system_error>
#include <utility>

#include "lockstep/base/tune_request.h"
#include "lockstep/data/errors.h"
#include "lockstep/data/format/file_error.h"

namespace lockstep::data {
namespace {

constexpr std::size_t kMostAtOnce = std::size_t{1} << 30;
constexpr int kMostTries = 1000;

/// A symbolic link is kept: its target is replaced.
std::string behind_links(const std::string& path) {
  constexpr int kMostLinks = 40;  // the system's limit
  std::filesystem::path real = path;
  std::error_code failed;
  for (int i = 0; i < kMostLinks && std::filesystem::is_symlink(real, failed); ++i) {
    const auto next = std::filesystem::read_symlink(real, failed);
    if (failed) break;
    real = real.parent_path() / next;  // an absolute one replaces the folder
  }
  return real.string();
}

std::string folder_of(const std::string& path) {
  const std::string folder = std::filesystem::path(path).parent_path().string();
  return folder.empty() ? "." : folder;
}

/// The permissions of the file that will be replaced; nothing if there is none.
std::optional<mode_t> permissions_of(const std::string& path) {
  struct stat status {};
  if (::stat(path.c_str(), &status) != 0) return std::nullopt;
  if (S_ISREG(status.st_mode)) return status.st_mode & 0777;
  throw FailedPrecondition(errors::kFile,
                           {.what = str("cannot write to ", path, ": it is ",
                                        S_ISDIR(status.st_mode) ? "a folder" : "a device or a pipe", ", not a file"),
                            .help = "give the name of a file, such as model.safetensors"});
}

/// "; 8000 bytes needed, 512 free"
std::string space_text(const std::string& folder, std::uint64_t needed) {
  struct statvfs space {};
  if (::statvfs(folder.c_str(), &space) != 0) return str("; ", needed, " bytes needed");
  return str("; ", needed, " bytes needed, ", static_cast<std::uint64_t>(space.f_bavail) * space.f_frsize, " free");
}

/// While it exists, a write beyond `ulimit -f` fails with EFBIG instead of killing the program with SIGXFSZ.
class SizeSignalBlocked {
 public:
  SizeSignalBlocked() {
    ::sigemptyset(&signal_);
    ::sigaddset(&signal_, SIGXFSZ);
    sigset_t waiting;
    ::sigpending(&waiting);
    was_waiting_ = ::sigismember(&waiting, SIGXFSZ) == 1;
    ::pthread_sigmask(SIG_BLOCK, &signal_, &before_);
  }
  ~SizeSignalBlocked() { ::pthread_sigmask(SIG_SETMASK, &before_, nullptr); }
  SizeSignalBlocked(const SizeSignalBlocked&) = delete;
  SizeSignalBlocked& operator=(const SizeSignalBlocked&) = delete;

  /// After EFBIG: consumes the signal of that write, which only this thread received.
  void take() const {
    constexpr timespec kAtOnce{};
    while (!was_waiting_ && ::sigtimedwait(&signal_, nullptr, &kAtOnce) < 0 && errno == EINTR) {
    }
  }

 private:
  sigset_t signal_, before_;
  bool was_waiting_;
};

}  // namespace

AtomicFile::AtomicFile(const std::string& path, std::uint64_t size)
    : path_(behind_links(path)), folder_(folder_of(path_)), size_(size) {
  if (!is_being_tuned()) file_ = create();
}

Descriptor AtomicFile::create() {
  const bool has_zero = path_.find('\0') != std::string::npos;
  if (path_.empty() || has_zero) {
    throw InvalidArgument(errors::kFile, {.what = has_zero ? "the name of the file contains a zero byte"
                                                           : "the name of the file is empty",
                                          .help = "give the name of a file, such as model.safetensors"});
  }
  std::error_code ignored;
  if (std::filesystem::is_symlink(path_, ignored)) fail("follow the links of", ELOOP);
  const auto permissions = permissions_of(path_);
  static std::atomic<unsigned> number{0};
  // A name may exist: left by a process that was killed, or used by another machine that shares the folder.
  for (int tries = 0; tries < kMostTries; ++tries) {
    const std::string name = str(path_, '.', ::getpid(), '-', number.fetch_add(1), ".tmp");
    Descriptor file(::open(name.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666));
    if (!file) {
      if (errno == EEXIST) continue;
      fail("create", errno);
    }
    if (permissions) ::fchmod(file.get(), *permissions);
    temporary_ = name;
    return file;
  }
  fail("create", EEXIST);
}

AtomicFile::~AtomicFile() {
  if (!temporary_.empty()) ::unlink(temporary_.c_str());
}

void AtomicFile::append(std::string_view bytes) {
  if (!file_) return;
  const SizeSignalBlocked blocked;
  while (!bytes.empty()) {
    const ssize_t count = ::write(file_.get(), bytes.data(), std::min(bytes.size(), kMostAtOnce));
    if (count >= 0) {
      bytes.remove_prefix(static_cast<std::size_t>(count));
    } else if (const int error = errno; error != EINTR) {
      if (error == EFBIG) blocked.take();
      fail("write to", error);
    }
  }
}

void AtomicFile::commit() {
  if (!file_) return;
  if (::fsync(file_.get()) != 0) fail("write to", errno);
  if (const int error = file_.close(); error != 0) fail("write to", error);
  if (::rename(temporary_.c_str(), path_.c_str()) != 0) fail("replace", errno);
  temporary_.clear();
  // The new name is on the disk once its folder is.
  const Descriptor folder(::open(folder_.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (folder && ::fsync(folder.get()) != 0 && errno == EIO) fail("store the name of", EIO);
}

void AtomicFile::fail(const char* action, int error_number) const {
  ErrorText text{.what = str("cannot ", action, ' ', path_), .seen = std::system_category().message(error_number)};
  switch (error_number) {
    case ENOENT:
    case ENOTDIR:
      // Folders such as /proc exist but cannot hold files.
      if (std::error_code ignored; temporary_.empty() && std::filesystem::is_directory(folder_, ignored)) {
        text.what += str(": the folder ", folder_, " takes no new files");
        text.help = "write to a folder on a disk, such as the one that std::filesystem::temp_directory_path returns";
        throw FailedPrecondition(errors::kFile, std::move(text));
      }
      text.what += str(": there is no folder ", folder_);
      text.help = "create the folder first: std::filesystem::create_directories";
      throw NotFound(errors::kFile, std::move(text));
    case EACCES:
    case EPERM:
    case EROFS:
      text.what += str(": files cannot be created in the folder ", folder_);
      text.help = "write to a folder that this user may write to; saving makes a new file and renames it";
      throw FailedPrecondition(errors::kFile, std::move(text));
    case ENOSPC:
    case EDQUOT:
    case EFBIG:
      text.seen += space_text(folder_, size_);
      text.help =
          "free some space, raise `ulimit -f`, or write to another disk; a file that was there before is untouched";
      throw ResourceExhausted(errors::kFile, std::move(text));
    case ENAMETOOLONG:
      text.help = "give a shorter name: while it is written, a file has `.<process>-<number>.tmp` behind its name";
      throw FailedPrecondition(errors::kFile, std::move(text));
    case ELOOP:
      text.help = "remove the link, which leads back to itself, or give another name";
      throw FailedPrecondition(errors::kFile, std::move(text));
    default: throw_file_error(action, path_, error_number);
  }
}

}  // namespace lockstep::data
