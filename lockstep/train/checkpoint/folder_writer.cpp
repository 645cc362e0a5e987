#include <fcntl.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <ctime>
#include <filesystem>
#include <system_error>
#include <utility>

#include "lockstep/base/crc32c.h"
#include "lockstep/base/descriptor.h"
#include "lockstep/base/error.h"
#include "lockstep/base/text.h"
#include "lockstep/data/format/atomic_file.h"
#include "lockstep/data/format/file_error.h"
#include "lockstep/data/format/mapped_file.h"
#include "lockstep/train/checkpoint/errors.h"
#include "lockstep/train/checkpoint/folder.h"
#include "lockstep/train/formatted.h"
#include "lockstep/version.h"

namespace lockstep::train::detail {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view kUnfinished = ".tmp";

std::string parent_of(const std::string& path) {
  const std::string parent = fs::path(path).parent_path().string();
  return parent.empty() ? "." : parent;
}

/// A name beside `path` that nothing has, and that is not one of a checkpoint.
std::string name_beside(const std::string& path, std::string_view ending = kUnfinished) {
  static std::atomic<unsigned> number{0};
  return str(parent_of(path), "/.", fs::path(path).filename().string(), '.', ::getpid(), '-', number.fetch_add(1),
             ending);
}

[[noreturn]] void fail(const std::string& action, const std::string& path, int error_number) {
  if (error_number != EACCES && error_number != EPERM && error_number != EROFS)
    data::throw_file_error(action, path, error_number);
  throw FailedPrecondition(errors::kFile,
                           {.what = str("cannot ", action, ' ', path, ": nothing can be created in ", parent_of(path)),
                            .seen = std::system_category().message(error_number),
                            .help = "write checkpoints to a folder that this user may write to"});
}

void sync_folder(const std::string& folder) {
  const Descriptor opened(::open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (opened && ::fsync(opened.get()) != 0 && errno == EIO) data::throw_file_error("store the names in", folder, EIO);
}

/// The new folder takes the name, and the old one, if there is one, the temporary name.
void rename_over(const std::string& temporary, const std::string& path) {
  if (::rename(temporary.c_str(), path.c_str()) == 0) return;
  if (errno != ENOTEMPTY && errno != EEXIST) fail("give its name to", path, errno);
  if (::renameat2(AT_FDCWD, temporary.c_str(), AT_FDCWD, path.c_str(), RENAME_EXCHANGE) == 0) return;
  if (errno != EINVAL && errno != ENOSYS) fail("replace", path, errno);
  // This file system cannot exchange two names. For a moment the old checkpoint has a name by which it is found again.
  const std::string old = name_beside(path, kReplaced);
  if (::rename(path.c_str(), old.c_str()) != 0) fail("replace", path, errno);
  if (::rename(temporary.c_str(), path.c_str()) != 0) {
    const int error = errno;
    ::rename(old.c_str(), path.c_str());
    fail("give its name to", path, error);
  }
  if (::rename(old.c_str(), temporary.c_str()) != 0) fail("remove", old, errno);
}

void remove_all(const std::string& path) {
  std::error_code failed;
  fs::remove_all(path, failed);
  if (failed) fail("remove", path, failed.value());
}

/// Their files may still be there if the process was killed while it removed them.
std::vector<std::string> parts_left_out(const std::string& checkpoint) {
  try {
    return read_manifest(checkpoint).left_out;
  } catch (const Error&) {
    return {};  // damaged: reported where it is read
  }
}

std::string time_text() {
  const std::time_t now = std::time(nullptr);
  std::tm utc{};
  ::gmtime_r(&now, &utc);
  std::array<char, 32> text{};
  std::strftime(text.data(), text.size(), "%FT%TZ", &utc);
  return text.data();
}

}  // namespace

std::string checkpoint_name(std::int64_t step) {
  if (step < 0) {
    throw InvalidArgument(errors::kCheckpoint, {.what = str("the step of a checkpoint must be >= 0, got ", step),
                                                .help = "pass the number of steps taken so far"});
  }
  return formatted("step-%012lld", static_cast<long long>(step));
}

void write_text(const std::string& path, const std::string& text) {
  data::AtomicFile file(path, text.size());
  file.append(text);
  file.commit();
}

void remove_checkpoint(const std::string& checkpoint) {
  const std::string aside = name_beside(checkpoint);
  if (::rename(checkpoint.c_str(), aside.c_str()) != 0) fail("remove", checkpoint, errno);
  remove_all(aside);
}

void leave_out_part(const std::string& checkpoint, const std::string& part) {
  Manifest manifest = read_manifest(checkpoint);
  std::vector<std::string> removed;
  std::erase_if(manifest.files, [&](const CheckpointFile& file) {
    if (file.prefix != part + '/') return false;
    removed.push_back(file.name);
    return true;
  });
  if (removed.empty()) return;
  manifest.left_out.push_back(part);
  write_text(str(checkpoint, '/', kManifestName), manifest_text(manifest));
  for (const std::string& name : removed) remove_all(str(checkpoint, '/', name));
}

void remove_unfinished(const std::string& folder) {
  std::vector<std::string> found;
  std::error_code ignored;
  for (const auto& entry : fs::directory_iterator(folder, ignored)) {
    const std::string name = entry.path().filename().string();
    if (!name.starts_with(".step-")) continue;
    const std::string replaced = name_of_replaced(name);
    const std::string path = str(folder, '/', replaced);
    const bool has_name = replaced.empty() || fs::exists(path);
    if (!has_name && ::rename(entry.path().c_str(), path.c_str()) != 0) fail("give its name to", path, errno);
    if (has_name && (name.ends_with(kUnfinished) || !replaced.empty())) found.push_back(entry.path().string());
  }
  for (const CheckpointEntry& checkpoint : list_checkpoints(folder)) {
    for (const auto& entry : fs::directory_iterator(checkpoint.path, ignored)) {
      if (entry.path().string().ends_with(kUnfinished)) found.push_back(entry.path().string());
    }
    const std::vector<std::string> left_out = parts_left_out(checkpoint.path);
    for (const auto& entry : fs::directory_iterator(checkpoint.path, ignored)) {
      const std::string name = entry.path().filename().string();
      const auto is_of = [&](const std::string& part) { return name.starts_with(part + '.'); };
      if (std::ranges::any_of(left_out, is_of)) found.push_back(entry.path().string());
    }
  }
  for (const std::string& path : found) remove_all(path);
}

void require_free_space(const std::string& folder, std::uint64_t bytes) {
  struct statvfs space {};
  if (::statvfs(folder.c_str(), &space) != 0) return;  // writing will say what is wrong
  const std::uint64_t free = static_cast<std::uint64_t>(space.f_bavail) * space.f_frsize;
  if (free >= bytes) return;
  throw ResourceExhausted(
      errors::kFile,
      {.what = str("no space for a checkpoint in ", folder, ": ", bytes, " bytes needed, ", free, " free"),
       .help = "free some space, keep fewer checkpoints, or write to another disk; existing "
               "checkpoints are untouched"});
}

CheckpointWriter::CheckpointWriter(std::string checkpoint)
    : path_(std::move(checkpoint)), temporary_(name_beside(path_)) {
  std::error_code failed;
  fs::create_directories(parent_of(path_), failed);
  if (failed) fail("create the folder", parent_of(path_), failed.value());
  if (::mkdir(temporary_.c_str(), 0777) != 0) fail("write", std::exchange(temporary_, ""), errno);
}

CheckpointWriter::~CheckpointWriter() {
  std::error_code ignored;
  if (!temporary_.empty()) fs::remove_all(temporary_, ignored);
}

std::string CheckpointWriter::path_of(const std::string& name) const { return str(temporary_, '/', name); }

CheckpointFile measured(CheckpointFile file, const std::string& folder) {
  const data::MappedFile written(str(folder, '/', file.name));
  file.bytes = written.bytes().size();
  file.crc32c = crc32c(written.bytes());
  return file;
}

void CheckpointWriter::commit(Manifest manifest) {
  manifest.files = std::move(files_);
  manifest.saved_at = time_text();
  manifest.lockstep_version = LOCKSTEP_VERSION;
  write_text(path_of(kManifestName), manifest_text(manifest));
  rename_over(temporary_, path_);
  sync_folder(parent_of(path_));
  // After an exchange it is the name of the old checkpoint.
  remove_all(std::exchange(temporary_, ""));
}

}  // namespace lockstep::train::detail
