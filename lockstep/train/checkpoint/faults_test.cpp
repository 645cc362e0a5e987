// Checkpoints on disks that are full, fail or cannot be written, and in processes that are killed at any moment. The system
// calls by which files are written are replaced by some that fail when they are told to.

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>

#include "lockstep/base/text.h"
#include "lockstep/data/format/atomic_file.h"
#include "lockstep/train/checkpoint/errors.h"
#include "lockstep/train/checkpoint/folder.h"
#include "tests/support/expect_error.h"
#include "tests/support/logged_lines.h"
#include "tests/support/temporary_folder.h"

namespace {

/// What happens at the call that brings the number down to zero.
struct Fault {
  int calls_left = -1;   // negative: nothing happens
  int error_number = 0;  // 0: the process is killed
  int calls = 0;
};
Fault fault;
/// Whether the file system can exchange two names. NFS and some of FUSE's cannot.
bool can_exchange = true;

/// Whether this call shall fail.
bool fails() {
  ++fault.calls;
  if (fault.calls_left < 0 || fault.calls_left-- > 0) return false;
  if (fault.error_number == 0) kill(getpid(), SIGKILL);
  errno = fault.error_number;
  return true;
}

}  // namespace

extern "C" {
ssize_t write(int file, const void* bytes, size_t count) {
  return fails() ? -1 : syscall(SYS_write, file, bytes, count);
}
int fsync(int file) { return fails() ? -1 : static_cast<int>(syscall(SYS_fsync, file)); }
int rename(const char* from, const char* to) noexcept {
  return fails() ? -1 : static_cast<int>(syscall(SYS_renameat2, AT_FDCWD, from, AT_FDCWD, to, 0));
}
int renameat2(int from_folder, const char* from, int to_folder, const char* to, unsigned flags) noexcept {
  if (fails()) return -1;
  if (!can_exchange) {
    errno = EINVAL;
    return -1;
  }
  return static_cast<int>(syscall(SYS_renameat2, from_folder, from, to_folder, to, flags));
}
int mkdir(const char* path, mode_t mode) noexcept {
  return fails() ? -1 : static_cast<int>(syscall(SYS_mkdirat, AT_FDCWD, path, mode));
}
}

namespace lockstep::train {
namespace {

namespace fs = std::filesystem;

void save_step(const std::string& folder, std::int64_t step, const std::string& bytes) {
  detail::CheckpointWriter writer(folder + '/' + detail::checkpoint_name(step));
  for (const char* name : {"a", "b"}) {
    data::AtomicFile file(writer.path_of(name), bytes.size());
    file.append(bytes);
    file.commit();
    writer.add({.name = name});
  }
  writer.commit({.step = step});
}

std::string content_of_newest(const std::string& folder) {
  const auto newest = newest_checkpoint(folder);
  return newest ? str(newest->step, ' ', file_content(newest->path + "/a")) : "";
}

/// How many of these system calls a checkpoint of step 2 makes if there is one of `step`.
int count_calls(std::int64_t step) {
  const TemporaryFolder folder;
  save_step(folder.path(), step, "old");
  fault = {};
  save_step(folder.path(), 2, "new");
  return fault.calls;
}

struct Place {
  std::int64_t step;  ///< of the checkpoint that is there before
  bool can_exchange;
};

class AtEveryCall : public testing::TestWithParam<Place> {
 protected:
  void SetUp() override { can_exchange = GetParam().can_exchange; }
  void TearDown() override { can_exchange = true; }
};

TEST_P(AtEveryCall, AnErrorLeavesTheOldCheckpointOrTheNewOne) {
  const std::int64_t step = GetParam().step;
  const int calls = count_calls(step);
  ASSERT_GE(calls, 12);
  const LogSilence silence;
  for (const int error : {EIO, ENOSPC}) {
    int failures = 0;
    for (int call = 0; call < calls; ++call) {
      const TemporaryFolder folder;
      save_step(folder.path(), step, "old");
      fault = {.calls_left = call, .error_number = error};
      try {
        save_step(folder.path(), 2, "new");
      } catch (const Error& seen) {
        ++failures;
        EXPECT_NE(seen.text().help, "") << seen.what();
      }
      fault = {};
      const std::string newest = content_of_newest(folder.path());
      EXPECT_TRUE(newest == "2 new" || newest == str(step, " old")) << call << ": " << newest;
      save_step(folder.path(), 2, "again");  // the folder is as good as before
      EXPECT_EQ(content_of_newest(folder.path()), "2 again") << call;
    }
    // Whether a folder's names are on the disk is known only if the disk says no: 3 times for files, once at the end.
    EXPECT_EQ(failures, error == EIO ? calls : calls - 4) << error;
  }
}

TEST_P(AtEveryCall, AKillLeavesTheOldCheckpointOrTheNewOne) {
  const std::int64_t step = GetParam().step;
  const int calls = count_calls(step);
  const LogSilence silence;
  for (int call = 0; call < calls; ++call) {
    const TemporaryFolder folder;
    save_step(folder.path(), step, "old");
    const pid_t child = fork();
    if (child == 0) {
      fault = {.calls_left = call};
      save_step(folder.path(), 2, "new");
      _exit(0);
    }
    int status = 0;
    ASSERT_EQ(waitpid(child, &status, 0), child);
    EXPECT_TRUE(WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL) << status;
    const std::string newest = content_of_newest(folder.path());
    EXPECT_TRUE(newest == "2 new" || newest == str(step, " old")) << call << ": " << newest;
    detail::remove_unfinished(folder.path());
    for (const auto& entry : fs::directory_iterator(folder.path()))
      EXPECT_TRUE(entry.path().filename().string().starts_with("step-")) << entry.path();
    save_step(folder.path(), 2, "again");
    EXPECT_EQ(content_of_newest(folder.path()), "2 again") << call;
  }
}

// With another checkpoint, and with one of the same step that is replaced.
INSTANTIATE_TEST_SUITE_P(Checkpoint, AtEveryCall, testing::Values(Place{1, true}, Place{2, true}, Place{2, false}));

/// A small disk of its own.
class SmallDisk {
 public:
  SmallDisk() { mounted_ = ::mount("tmpfs", path().c_str(), "tmpfs", 0, "size=256k") == 0; }
  ~SmallDisk() {
    if (mounted_) ::umount2(path().c_str(), MNT_DETACH);
  }
  SmallDisk(const SmallDisk&) = delete;
  SmallDisk& operator=(const SmallDisk&) = delete;

  bool mounted() const { return mounted_; }
  bool make_read_only() const { return ::mount("", path().c_str(), "tmpfs", MS_REMOUNT | MS_RDONLY, "size=256k") == 0; }
  std::string path() const { return folder_.path(); }

 private:
  const TemporaryFolder folder_;
  bool mounted_ = false;
};

TEST(SmallDisk, KeepsTheOldCheckpointWhenItIsFull) {
  const SmallDisk disk;
  if (!disk.mounted()) GTEST_SKIP() << "NOT RUN: a small disk cannot be mounted here (needs root)";
  save_step(disk.path(), 1, "old");
  expect_error([&] { save_step(disk.path(), 2, std::string(200'000, 'x')); }, Code::ResourceExhausted, errors::kFile,
               {"200000 bytes needed, "});
  EXPECT_EQ(content_of_newest(disk.path()), "1 old");
  EXPECT_EQ(std::distance(fs::directory_iterator(disk.path()), fs::directory_iterator()), 1);
  expect_error([&] { detail::require_free_space(disk.path(), 1 << 20); }, Code::ResourceExhausted, errors::kFile,
               {"no space for a checkpoint in " + disk.path() + ": 1048576 bytes needed, "});
  detail::require_free_space(disk.path(), 100'000);
}

TEST(SmallDisk, MayBeReadOnly) {
  const SmallDisk disk;
  if (!disk.mounted()) GTEST_SKIP() << "NOT RUN: a small disk cannot be mounted here (needs root)";
  save_step(disk.path(), 1, "old");
  ASSERT_TRUE(disk.make_read_only());
  expect_error([&] { save_step(disk.path(), 2, "new"); }, Code::FailedPrecondition, errors::kFile,
               {"nothing can be created in " + disk.path(), "folder that this user may write to"});
  EXPECT_EQ(content_of_newest(disk.path()), "1 old");
}

}  // namespace
}  // namespace lockstep::train
