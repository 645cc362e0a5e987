#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <utility>

#include "lockstep/train/callback.h"
#include "lockstep/train/require_option.h"

// What callbacks that write logs have in common.
namespace lockstep::train::detail {

/// `option` is the name of the path.
inline void require_logger(const char* callback, std::int64_t every_steps, const char* option,
                           const std::string& path) {
  require_option(every_steps >= 0, callback, str("every_steps must be >= 0, got ", every_steps),
                 "leave it out to log epochs only");
  require_option(!path.empty(), callback, str(option, " must not be empty"),
                 str("give it a .", option, ", such as \"run/logs\""));
}

inline Logs with_learning_rate(Logs logs, const Training& training) {
  logs["learning_rate"] = training.learning_rate;
  return logs;
}

/// Numbers that a log is written with, one after the other: epochs, or steps. Every worker counts, the chief writes.
struct LastNumber {
  std::int64_t value = -1;   ///< of the last row
  bool is_restored = false;  ///< the training continues from a checkpoint, and the file with it

  /// Once for each training.
  std::optional<std::int64_t> begin() {
    if (!std::exchange(is_restored, false)) {
      value = -1;
      return std::nullopt;
    }
    return value;
  }
  void restore(std::int64_t saved) { *this = {saved, true}; }
};

}  // namespace lockstep::train::detail
