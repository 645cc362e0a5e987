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
  /// `say(name, seconds)` is called on a thread of its own.
  SlowCollectives(std::chrono::milliseconds patience, std::function<void(const std::string& name, double seconds)> say);
  ~SlowCollectives();
  SlowCollectives(const SlowCollectives&) = delete;
  SlowCollectives& operator=(const SlowCollectives&) = delete;

  void begins(std::uint64_t id, std::string_view name);
  void ends(std::uint64_t id);

 private:
  struct Running {
    std::string name;
    std::chrono::steady_clock::time_point since;
    bool is_said = false;
  };
  void watch();

  const std::chrono::milliseconds patience_;
  const std::function<void(const std::string&, double)> say_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::map<std::uint64_t, Running> running_;
  bool is_over_ = false;
  std::thread thread_;
};

}  // namespace lockstep
