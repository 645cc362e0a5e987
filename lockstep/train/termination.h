#pragma once

namespace lockstep::train::detail {

/// Notices SIGTERM while it lives, in place of the process ending at once. The handler that was there before is called too, and
/// put back when the last watch goes.
class TerminationWatch {
 public:
  TerminationWatch();
  ~TerminationWatch();
  TerminationWatch(const TerminationWatch&) = delete;
  TerminationWatch& operator=(const TerminationWatch&) = delete;

  /// Since this watch began.
  bool is_requested() const;

 private:
  int before_;  ///< signals that came before it began
};

/// Status of a process that SIGTERM has ended: 128 + 15.
inline constexpr int kTerminatedStatus = 143;

/// Flushes what was printed, and ends the process with `kTerminatedStatus`. Other threads still run, so nothing is destroyed.
[[noreturn]] void end_terminated_process();

}  // namespace lockstep::train::detail
