#pragma once

#include <atomic>
#include <cstdint>
#include <deque>
#include <map>
#include <mutex>
#include <string>

#include "lockstep/base/export.h"

namespace lockstep::data {

/// Counts the errors that `ignore_errors` dropped. Shared by all iterations; may be read at any time. A resumed pass
/// reads its earlier part again: a counter that saw those errors does not count them twice, while a new counter, in a
/// program that continues another's pass, does. Either way it ends with the count of an uninterrupted pass.
class LOCKSTEP_EXPORT ErrorCounter {
 public:
  /// How many errors were left out, and the text of the last one.
  std::int64_t count() const { return count_.load(); }
  std::string last_message() const;

  /// An error's position: `place` (from 1 on) in a stage's pass with this key.
  struct Where {
    std::uint64_t pass = 0;   ///< the key of the pass
    std::int64_t place = 0;   ///< counts from 1
    bool is_resumed = false;  ///< whether the pass continues an earlier one
  };
  /// False if it was counted before.
  bool add(const std::string& message, const Where& where);

 private:
  std::atomic<std::int64_t> count_{0};
  mutable std::mutex mutex_;
  std::string last_message_;
  std::map<std::uint64_t, std::int64_t> last_places_;  // the latest passes with errors, by key
  std::deque<std::uint64_t> passes_;                   // the same keys, oldest first
};

}  // namespace lockstep::data
