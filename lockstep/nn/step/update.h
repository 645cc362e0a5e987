#pragma once

#include <atomic>
#include <cstdint>
#include <mutex>
#include <string>

#include "lockstep/base/function_ref.h"

// The state of weights after an update failed half-way. The update itself: updater.h.
namespace lockstep::detail {

class ModuleCore;

/// Records that an update failed half-way: some replicas may have changed their weights and others not, so the weights
/// cannot be trusted.
class Poison {
 public:
  explicit Poison(ModuleCore& module) : module_(module) {}
  /// Calls `update`, which must not stop half-way on one replica while others continue. If it throws, all later calls
  /// fail.
  void update_or_poison(std::int64_t step, FunctionRef<void()> update);
  /// Whether an update has failed.
  bool is_set() const { return is_set_.load(std::memory_order_acquire); }
  /// Throws if an update failed and not everything was restored since.
  void require_clean(const char* operation) const;
  /// Also throws if a failed update of another optimizer left the weights inconsistent.
  void require_whole_weights(const char* operation) const;
  /// The optimizer's state was restored. Calls fail until the weights are restored too.
  void lift() { is_lifted_.store(true, std::memory_order_release); }

 private:
  void set(std::int64_t step, const char* why);

  ModuleCore& module_;
  std::atomic<bool> is_set_{false};
  std::atomic<bool> is_lifted_{false};
  mutable std::mutex mutex_;
  std::string why_;
  std::int64_t step_ = 0;
};

}  // namespace lockstep::detail
