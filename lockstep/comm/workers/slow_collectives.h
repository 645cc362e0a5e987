#pragma once

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <map>
#include <mutex>
#include <string>
#include <string_view>
#include <thread>

namespace lockstep {

/// Notices collectives that take long, mostly because a worker has not reached them, and says so once for each.
class SlowCollectives {
 public:
  struct Callbacks {
    /// Shortly before `say`: this worker has reached the collective and waits. Empty: it has ended.
    std::function<void(const std::string& name)> waits;
    std::function<void(const std::string& name, double seconds)> say;
  };

  /// The callbacks are called on a thread of its own, and by `ends`.
  SlowCollectives(std::chrono::milliseconds patience, Callbacks callbacks);
  ~SlowCollectives();
  SlowCollectives(const SlowCollectives&) = delete;
  SlowCollectives& operator=(const SlowCollectives&) = delete;

  void begins(std::uint64_t id, std::string_view name);
  /// Only now does the program wait for it: some collectives begin long before that.
  void is_awaited(std::uint64_t id);
  void ends(std::uint64_t id);

 private:
  struct Running {
    std::string name;
    std::chrono::steady_clock::time_point since = {};
    bool is_awaited = false;
    bool is_known = false;  ///< to wait
    bool is_said = false;
  };
  void watch();

  const std::chrono::milliseconds patience_;
  const Callbacks callbacks_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::map<std::uint64_t, Running> running_;
  bool is_over_ = false;
  std::thread thread_;
};

}  // namespace lockstep
