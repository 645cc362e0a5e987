#pragma once

#include <atomic>
#include <cstdint>
#include <mutex>
#include <string>

#include "lockstep/base/function_ref.h"

// What becomes of weights whose update fails half-way. The update itself: updater.h.
namespace lockstep::detail {

class ModuleCore;

/// Remembers that an update has failed half-way: some replicas may have changed their weights and others not, so the
/// weights cannot be trusted any more.
class Poison {
 public:
  explicit Poison(ModuleCore& module) : module_(module) {}
  /// Does what must not stop half-way on one replica while others go on. If it throws, all later calls are refused.
  void update_or_poison(std::int64_t step, FunctionRef<void()> update);
  /// Whether an update has failed.
  bool is_set() const { return is_set_.load(std::memory_order_acquire); }
  /// Throws if one has, and not everything was restored since.
  void require_clean(const char* operation) const;
  /// Also throws if an update of another optimizer has torn the weights.
  void require_whole_weights(const char* operation) const;
  /// The optimizer's state was restored. Calls are refused until the weights are too.
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
