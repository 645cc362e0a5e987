#pragma once

#include <atomic>
#include <condition_variable>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "lockstep/comm/engine/engine_abi.h"
#include "lockstep/comm/engine/status.h"

namespace lockstep::engine {

class Channel;

/// Why an engine stopped. The first error wins; all channels of the engine end with it.
class FailureState {
 public:
  FailureState(int workers, int channels) : channels_(channels), closed_(static_cast<std::size_t>(workers), 0) {}

  /// Channels that are woken by the first failure.
  void add(Channel& channel);
  void remove(Channel& channel);

  bool is_set() const { return is_set_.load(std::memory_order_acquire); }
  void set(const lockstep_status& status);
  lockstep_status get() const;
  void throw_if_set() const {
    if (is_set()) throw Failure(get());
  }

  /// The connection to a worker is gone without a word. Who gives up tells why on each connection that still can carry
  /// it, so this waits a moment for that reason on another channel, unless all channels to the worker are gone. Then
  /// sets and throws the reason.
  [[noreturn]] void lost(int rank, const std::string& during, const std::string& seen);

 private:
  const int channels_;
  mutable std::mutex mutex_;
  std::condition_variable changed_;
  std::atomic<bool> is_set_ = false;
  std::optional<lockstep_status> status_;
  std::vector<int> closed_;  // channels, by worker
  std::vector<Channel*> woken_;
};

}  // namespace lockstep::engine
