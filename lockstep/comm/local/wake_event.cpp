#include "lockstep/comm/local/wake_event.h"

#include <linux/futex.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <climits>
#include <ctime>

namespace lockstep::local {
namespace {

inline void relax() {
#if defined(__aarch64__)
  asm volatile("isb");
#elif defined(__x86_64__)
  __builtin_ia32_pause();
#endif
}

// std::atomic::wait has no deadline, hence the system call itself.
void futex_wait(std::atomic<std::uint32_t>& word, std::uint32_t expected, Deadline::Clock::duration timeout) {
  const auto seconds = std::chrono::duration_cast<std::chrono::seconds>(timeout);
  timespec relative{};
  relative.tv_sec = static_cast<time_t>(seconds.count());
  relative.tv_nsec = static_cast<long>(std::chrono::duration_cast<std::chrono::nanoseconds>(timeout - seconds).count());
  syscall(SYS_futex, reinterpret_cast<std::uint32_t*>(&word), FUTEX_WAIT_PRIVATE, expected, &relative, nullptr, 0);
}

void futex_wake_all(std::atomic<std::uint32_t>& word) {
  syscall(SYS_futex, reinterpret_cast<std::uint32_t*>(&word), FUTEX_WAKE_PRIVATE, INT_MAX, nullptr, nullptr, 0);
}

}  // namespace

bool WakeEvent::wait(FunctionRef<bool()> ready, FunctionRef<bool()> spinning_blocks, const Deadline& deadline) {
  if (ready()) return true;
  const auto spin_end = Deadline::Clock::now() + spin_;
  while (!spinning_blocks() && Deadline::Clock::now() < spin_end) {
    for (int i = 0; i < 32; ++i) {
      relax();
      if (ready()) return true;
    }
  }
  return sleep(ready, deadline);
}

// Announcer: change the condition, then look for sleepers. Sleeper: count itself, then look at the condition.
// With sequential consistency at least one of the two sees the other, so no wake-up is lost.
bool WakeEvent::sleep(FunctionRef<bool()> ready, const Deadline& deadline) {
  constexpr Deadline::Clock::duration kLongestSleep = std::chrono::hours(1);
  sleepers_.fetch_add(1, std::memory_order_seq_cst);
  bool done = false;
  while (true) {
    const std::uint32_t generation = generation_.load(std::memory_order_seq_cst);
    done = ready();
    if (done || deadline.expired()) break;
    futex_wait(generation_, generation, std::min(deadline.remaining(), kLongestSleep));
  }
  sleepers_.fetch_sub(1, std::memory_order_seq_cst);
  return done;
}

void WakeEvent::wake_sleepers() {
  generation_.fetch_add(1, std::memory_order_seq_cst);
  futex_wake_all(generation_);
}

}  // namespace lockstep::local
