#pragma once

#include <atomic>

namespace lockstep::detail {

/// A warning that is logged once, by whichever replica comes first.
class WarnOnce {
 public:
  bool is_done() const { return is_done_.load(std::memory_order_relaxed); }
  /// Whether the caller is the one to log it.
  bool is_first() const { return !is_done_.exchange(true, std::memory_order_relaxed); }

 private:
  mutable std::atomic<bool> is_done_{false};
};

}  // namespace lockstep::detail
