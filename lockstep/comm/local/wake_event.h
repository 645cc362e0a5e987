#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>

#include "lockstep/base/deadline.h"
#include "lockstep/base/function_ref.h"

namespace lockstep::local {

/// Lets threads wait for a condition that other threads make true. A waiter spins for a while, because the others
/// usually come within microseconds, and then sleeps in the kernel; an announcer pays for a system call only if a
/// thread sleeps.
///
/// The condition must be made of atomics that are stored with sequential consistency before `announce`.
class WakeEvent {
 public:
  explicit WakeEvent(std::chrono::nanoseconds spin) : spin_(spin) {}

  /// Returns true as soon as `ready()` does, false when the deadline passes first. While `spinning_blocks()`, because
  /// the awaited threads need this thread's core, the waiter does not spin.
  bool wait(FunctionRef<bool()> ready, FunctionRef<bool()> spinning_blocks, const Deadline& deadline);

  /// Call after having changed the waiters' condition.
  void announce() {
    if (sleepers_.load(std::memory_order_seq_cst) != 0) wake_sleepers();
  }

 private:
  void wake_sleepers();
  bool sleep(FunctionRef<bool()> ready, const Deadline& deadline);

  std::chrono::nanoseconds spin_;
  std::atomic<std::uint32_t> generation_{0};
  std::atomic<std::uint32_t> sleepers_{0};
};

}  // namespace lockstep::local
