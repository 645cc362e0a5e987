#include "lockstep/comm/engine/collective_log.h"

#include <algorithm>
#include <cstdio>

#include "lockstep/base/text.h"

namespace lockstep::engine {

void CollectiveLog::begin(const Fingerprint& fingerprint) {
  const std::lock_guard lock(mutex_);
  const Entry entry{fingerprint, Clock::now(), {}, Entry::State::Running};
  if (entries_.size() < kKept) {
    entries_.push_back(entry);
  } else {
    entries_[count_ % kKept] = entry;
  }
  ++count_;
}

void CollectiveLog::end(bool well) {
  const std::lock_guard lock(mutex_);
  Entry& last = entries_[(count_ - 1) % kKept];
  last.ended = Clock::now();
  last.state = well ? Entry::State::Done : Entry::State::Failed;
}

std::string CollectiveLog::text(int channel) const {
  const std::lock_guard lock(mutex_);
  const auto milliseconds = [](Clock::duration time) {
    char text[32];
    std::snprintf(text, sizeof text, "%.3f ms", std::chrono::duration<double, std::milli>(time).count());
    return std::string(text);
  };
  const auto now = Clock::now();
  std::string text;
  for (std::size_t i = count_ - std::min(count_, kKept); i < count_; ++i) {
    const Entry& entry = entries_[i % kKept];
    text += str("channel ", channel, " #", entry.fingerprint.sequence, " ", milliseconds(now - entry.began), " ago, ",
                entry.state == Entry::State::Running ? "not finished"
                : entry.state == Entry::State::Done  ? str("took ", milliseconds(entry.ended - entry.began))
                                                     : str("failed after ", milliseconds(entry.ended - entry.began)),
                ": ", describe(entry.fingerprint), "\n");
  }
  return text;
}

}  // namespace lockstep::engine
