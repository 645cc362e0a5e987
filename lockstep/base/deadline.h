#pragma once

#include <chrono>
#include <optional>

#include "lockstep/base/export.h"

namespace lockstep {

/// The moment at which a wait gives up. Passed instead of a number of seconds, so that nested waits share one end. Uses
/// the monotonic clock: changes of the wall clock have no effect.
class LOCKSTEP_EXPORT Deadline {
 public:
  using Clock = std::chrono::steady_clock;  ///< the monotonic clock

  /// A wait without an end.
  static Deadline never() { return Deadline(std::nullopt); }
  /// No time limit was given: waits forever within a process, between workers until the strategy's limit.
  static Deadline by_default() {
    Deadline unset = never();
    unset.is_default_ = true;
    return unset;
  }
  /// A wait that ends at this moment.
  static Deadline at(Clock::time_point end) { return Deadline(end); }

  /// A wait that ends after this time, counted from now.
  template <class Rep, class Period>
  static Deadline after(std::chrono::duration<Rep, Period> wait) {
    const auto now = Clock::now();
    // A wait beyond the clock's range has no deadline.
    if (std::chrono::duration<double>(wait) >= std::chrono::duration<double>(Clock::time_point::max() - now))
      return never();
    return Deadline(now + std::chrono::duration_cast<Clock::duration>(wait));
  }

  /// Whether it never ends, is what `by_default` returned, or has passed.
  bool is_never() const { return !end_; }
  bool is_default() const { return is_default_; }
  bool expired() const;

  /// Time left, never negative; `Clock::duration::max()` without a deadline.
  Clock::duration remaining() const;

 private:
  explicit Deadline(std::optional<Clock::time_point> end) : end_(end) {}

  std::optional<Clock::time_point> end_;
  bool is_default_ = false;
};

}  // namespace lockstep
