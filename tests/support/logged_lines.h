#pragma once

#include <mutex>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "lockstep/base/logging.h"

namespace lockstep {

/// Collects what is logged while it lives.
class LoggedLines {
 public:
  LoggedLines() {
    set_log_sink([this](Severity, std::string_view line) {
      const std::lock_guard lock(mutex_);
      lines_.emplace_back(line);
    });
  }
  ~LoggedLines() { set_log_sink({}); }
  LoggedLines(const LoggedLines&) = delete;
  LoggedLines& operator=(const LoggedLines&) = delete;

  /// Returns once this many lines with this fragment have been logged.
  void await(std::string_view fragment, int lines = 1) const {
    while (count(fragment) < lines) std::this_thread::yield();
  }

  int count(std::string_view fragment) const {
    const std::lock_guard lock(mutex_);
    int found = 0;
    for (const auto& line : lines_) found += line.find(fragment) != std::string::npos ? 1 : 0;
    return found;
  }

 private:
  mutable std::mutex mutex_;
  std::vector<std::string> lines_;
};

/// Logs nothing while it lives.
class LogSilence {
 public:
  LogSilence() { set_log_severity(Severity::Silent); }
  ~LogSilence() { set_log_severity(Severity::Info); }
  LogSilence(const LogSilence&) = delete;
  LogSilence& operator=(const LogSilence&) = delete;
};

}  // namespace lockstep
