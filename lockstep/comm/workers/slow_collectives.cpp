#include "lockstep/comm/workers/slow_collectives.h"

#include <utility>
#include <vector>

namespace lockstep {

SlowCollectives::SlowCollectives(std::chrono::milliseconds patience,
                                 std::function<void(const std::string&, double)> say)
    : patience_(patience), say_(std::move(say)), thread_([this] { watch(); }) {}

SlowCollectives::~SlowCollectives() {
  {
    const std::lock_guard lock(mutex_);
    is_over_ = true;
  }
  changed_.notify_all();
  thread_.join();
}

void SlowCollectives::begins(std::uint64_t id, std::string_view name) {
  const std::lock_guard lock(mutex_);
  running_[id] = {std::string(name), std::chrono::steady_clock::now()};
}

void SlowCollectives::ends(std::uint64_t id) {
  const std::lock_guard lock(mutex_);
  running_.erase(id);
}

void SlowCollectives::watch() {
  std::unique_lock lock(mutex_);
  while (!is_over_) {
    changed_.wait_for(lock, patience_ / 10);
    std::vector<std::pair<std::string, double>> late;
    for (auto& [id, each] : running_) {
      const auto taken = std::chrono::steady_clock::now() - each.since;
      if (taken < patience_ || std::exchange(each.is_said, true)) continue;
      late.emplace_back(each.name, std::chrono::duration<double>(taken).count());
    }
    if (late.empty()) continue;
    lock.unlock();
    say_(late.front().first, late.front().second);  // the others of this moment wait for the same worker
    lock.lock();
  }
}

}  // namespace lockstep
