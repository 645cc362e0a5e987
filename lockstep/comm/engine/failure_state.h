#pragma once

#include <atomic>
#include <condition_variable>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "lockstep/base/descriptor.h"
#include "lockstep/base/error.h"

namespace lockstep::engine {

/// For poll(): reads and writes like the system's eventfd.
Descriptor make_event();
void signal_event(int event);

/// Why an engine stopped. The first error wins; all channels of the engine end with it.
class FailureState {
 public:
  FailureState(int workers, int channels) : channels_(channels), closed_(static_cast<std::size_t>(workers)) {}

  bool is_set() const { return is_set_.load(std::memory_order_acquire); }
  void set(const Error& error);
  /// `collective`: one that it ended, reported to the caller unless the error names another place.
  Error get(const std::string& collective = {}) const;
  void throw_if_set() const;
  int event() const { return event_.get(); }  ///< readable once it is set

  /// The connection to a worker ended without a reason. A worker that gives up sends its reason over every connection
  /// still open, so this waits a moment for it on another channel, unless all channels to the worker are closed. Then
  /// sets and throws the reason.
  [[noreturn]] void lost(int rank, const std::string& seen);

 private:
  const int channels_;
  const Descriptor event_ = make_event();
  mutable std::mutex mutex_;
  std::condition_variable changed_;
  std::atomic<bool> is_set_ = false;
  std::optional<Error> error_;
  std::vector<int> closed_;  // closed channels per worker
};

/// The current exception, for use in `catch (...)`.
Error current_error();

inline constexpr std::size_t kMostErrorBytes = 4096;  ///< longest error text that is sent to another worker

}  // namespace lockstep::engine
