#include "tests/support/held_files.h"

#include <fcntl.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <condition_variable>
#include <cstdio>
#include <mutex>
#include <optional>
#include <thread>

namespace lockstep {
namespace {

struct Gate {
  std::mutex mutex;
  std::condition_variable changed;
  std::optional<std::thread::id> holder;  ///< the thread that need not wait; none while the gate is open
};

Gate& gate() {
  static Gate& one = *new Gate;  // threads may still rename files when the program ends
  return one;
}

}  // namespace

HeldFiles::HeldFiles() {
  const std::lock_guard lock(gate().mutex);
  gate().holder = std::this_thread::get_id();
}

void HeldFiles::release() {
  const std::lock_guard lock(gate().mutex);
  gate().holder.reset();
  gate().changed.notify_all();
}

}  // namespace lockstep

// In place of the C library's.
extern "C" int rename(const char* from, const char* to) noexcept {
  {
    lockstep::Gate& gate = lockstep::gate();
    std::unique_lock lock(gate.mutex);
    gate.changed.wait(lock, [&] { return !gate.holder || *gate.holder == std::this_thread::get_id(); });
  }
  return static_cast<int>(syscall(SYS_renameat2, AT_FDCWD, from, AT_FDCWD, to, 0));
}
