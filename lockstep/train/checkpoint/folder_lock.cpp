#include "lockstep/train/checkpoint/folder_lock.h"

#include <fcntl.h>
#include <sys/file.h>
#include <unistd.h>

#include <cerrno>
#include <filesystem>
#include <system_error>

#include "lockstep/base/error.h"
#include "lockstep/base/file_text.h"
#include "lockstep/base/text.h"
#include "lockstep/comm/socket.h"
#include "lockstep/data/format/file_error.h"
#include "lockstep/train/checkpoint/errors.h"

namespace lockstep::train::detail {

FolderLock::FolderLock(const std::string& folder) {
  std::error_code failed;
  std::filesystem::create_directories(folder, failed);
  if (failed) data::throw_file_error("create the folder", folder, failed.value());
  const std::string path = folder + "/.lock";
  file_ = data::open_file("create", path, O_RDWR | O_CREAT);
  if (::flock(file_.get(), LOCK_EX | LOCK_NB) != 0) {
    if (errno != EWOULDBLOCK) data::throw_file_error("lock", path, errno);
    throw FailedPrecondition(errors::kCheckpoint,
                             {.what = str("another checkpoint manager writes to ", folder),
                              .seen = str("it is held by ", file_text(path)),
                              .help = "give each training a folder of its own, and each folder one manager"});
  }
  // Only for the message above: whether the text is on the disk does not matter.
  const std::string owner = str("process ", ::getpid(), " on ", host_name());
  if (::ftruncate(file_.get(), 0) == 0 && ::write(file_.get(), owner.data(), owner.size()) < 0) return;
}

}  // namespace lockstep::train::detail
