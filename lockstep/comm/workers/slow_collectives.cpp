#include "lockstep/comm/workers/slow_collectives.h"

#include <utility>

namespace lockstep {

SlowCollectives::SlowCollectives(std::chrono::milliseconds patience, Callbacks callbacks)
    : patience_(patience), callbacks_(std::move(callbacks)), thread_([this] { watch(); }) {}

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
  running_[id] = {.name = std::string(name)};
}

void SlowCollectives::is_awaited(std::uint64_t id) {
  const std::lock_guard lock(mutex_);
  const auto found = running_.find(id);
  if (found == running_.end()) return;
  found->second.since = std::chrono::steady_clock::now();
  found->second.is_awaited = true;
}

void SlowCollectives::ends(std::uint64_t id) {
  {
    const std::lock_guard lock(mutex_);
    const auto found = running_.find(id);
    if (found == running_.end()) return;
    const bool was_known = found->second.is_known;
    running_.erase(found);
    if (!was_known) return;
  }
  callbacks_.waits({});
}

void SlowCollectives::watch() {
  std::unique_lock lock(mutex_);
  while (!is_over_) {
    changed_.wait_for(lock, patience_ / 50);
    std::string waits;
    std::string late;
    double seconds = 0;
    // Of several at one moment one is enough: they wait for the same worker.
    for (auto& [id, each] : running_) {
      if (!each.is_awaited) continue;
      const auto taken = std::chrono::steady_clock::now() - each.since;
      if (taken >= patience_ * 8 / 10 && !std::exchange(each.is_known, true)) {
        waits = each.name;
      } else if (taken >= patience_ && !std::exchange(each.is_said, true) && late.empty()) {
        late = each.name;
        seconds = std::chrono::duration<double>(taken).count();
      }
    }
    if (waits.empty() && late.empty()) continue;
    lock.unlock();
    if (!waits.empty()) callbacks_.waits(waits);
    if (!late.empty()) callbacks_.say(late, seconds);
    lock.lock();
  }
}

}  // namespace lockstep
