#pragma once

#include <gtest/gtest.h>

#include <chrono>
#include <mutex>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "lockstep/base/logging.h"

namespace lockstep {

/// Sets which lines are logged while it exists, overriding LOCKSTEP_LOG.
class LogSeverityScope {
 public:
  explicit LogSeverityScope(Severity severity) : before_(current()) { set_log_severity(severity); }
  ~LogSeverityScope() { set_log_severity(before_); }
  LogSeverityScope(const LogSeverityScope&) = delete;
  LogSeverityScope& operator=(const LogSeverityScope&) = delete;

 private:
  static Severity current() {
    for (const Severity severity : {Severity::Debug, Severity::Info, Severity::Warning, Severity::Error}) {
      if (is_logged(severity)) return severity;
    }
    return Severity::Silent;
  }

  Severity before_;
};

/// Collects log lines while it exists, from `severity` upwards.
class LoggedLines {
 public:
  explicit LoggedLines(Severity severity = Severity::Info) : severity_(severity) {
    set_log_sink([this](Severity, std::string_view line) {
      const std::lock_guard lock(mutex_);
      lines_.emplace_back(line);
    });
  }
  ~LoggedLines() { set_log_sink({}); }
  LoggedLines(const LoggedLines&) = delete;
  LoggedLines& operator=(const LoggedLines&) = delete;

  /// Returns once this many lines with this fragment were logged. Fails the test if they do not come in time.
  void await(std::string_view fragment, int lines = 1, std::chrono::seconds limit = std::chrono::seconds(60)) const {
    for (const auto end = std::chrono::steady_clock::now() + limit; count(fragment) < lines;) {
      if (std::chrono::steady_clock::now() > end) {
        ADD_FAILURE() << "'" << fragment << "' was logged " << count(fragment) << " times in " << limit.count()
                      << " s instead of " << lines;
        return;
      }
      std::this_thread::yield();
    }
  }

  int count(std::string_view fragment) const {
    const std::lock_guard lock(mutex_);
    int found = 0;
    for (const auto& line : lines_) found += line.find(fragment) != std::string::npos ? 1 : 0;
    return found;
  }

  std::vector<std::string> lines() const {
    const std::lock_guard lock(mutex_);
    return lines_;
  }

 private:
  mutable std::mutex mutex_;
  std::vector<std::string> lines_;
  LogSeverityScope severity_;
};

/// Logs nothing while it exists.
class LogSilence {
 public:
  LogSilence() : severity_(Severity::Silent) {}

 private:
  LogSeverityScope severity_;
};

}  // namespace lockstep
