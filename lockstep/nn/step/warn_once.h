#pragma once

#include <atomic>

namespace lockstep::detail {

/// A warning that is logged once, by the first replica to reach it.
class WarnOnce {
 public:
  bool is_done() const { return is_done_.load(std::memory_order_relaxed); }
  /// Whether the caller should log it.
  bool is_first() const { return !is_done_.exchange(true, std::memory_order_relaxed); }

 private:
  mutable std::atomic<bool> is_done_{false};
};

}  // namespace lockstep::detail
