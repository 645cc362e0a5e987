#include "lockstep/base/logging.h"

#include <unistd.h>

#include <array>
#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <mutex>
#include <string>
#include <utility>

#include "lockstep/base/open_line.h"
#include "lockstep/base/vocabulary.h"

namespace lockstep {
namespace {

constexpr std::array<std::string_view, 5> kSeverityNames{"debug", "info", "warning", "error", "silent"};

Severity severity_from_environment() {
  if (const char* wanted = std::getenv("LOCKSTEP_LOG")) {
    for (std::size_t i = 0; i < kSeverityNames.size(); ++i) {
      if (wanted == kSeverityNames[i]) return static_cast<Severity>(i);
    }
  }
  return Severity::Info;
}

struct LogState {
  std::mutex mutex;
  LogSink sink;  // guarded by mutex; empty: standard error
  std::atomic<Severity> least{severity_from_environment()};
};

LogState& state() {
  // Never destroyed: threads and destructors of the program may log until its very end.
  static LogState& instance = *new LogState;
  return instance;
}

std::atomic<bool> line_is_open{false};  // on the terminal

void write_to_stderr(Severity severity, std::string_view line) {
  const auto name = kSeverityNames[static_cast<std::size_t>(severity)];
  std::string text = line_is_open && ::isatty(STDERR_FILENO) != 0 ? "\r\x1b[K" : "";
  text.append("lockstep: ").append(name).append(": ").append(line).append("\n");
  // One call, so that lines of several processes on one terminal do not mix.
  std::fwrite(text.data(), 1, text.size(), stderr);
}

thread_local bool inside_sink = false;

struct InsideSink {
  InsideSink() { inside_sink = true; }
  ~InsideSink() { inside_sink = false; }
};

void deliver(Severity severity, std::string_view line) {
  if (inside_sink) return write_to_stderr(severity, line);
  const std::lock_guard lock(state().mutex);
  if (!state().sink) return write_to_stderr(severity, line);
  const InsideSink inside;
  state().sink(severity, line);
}

}  // namespace

void detail::set_line_is_open(bool is_open) noexcept { line_is_open = is_open; }

void set_log_sink(LogSink sink) {
  // Swapped, so that the old sink is destroyed after the lock is released.
  const std::lock_guard lock(state().mutex);
  std::swap(state().sink, sink);
}

void set_log_severity(Severity severity) { state().least.store(severity, std::memory_order_relaxed); }

bool is_logged(Severity severity) noexcept {
  return severity != Severity::Silent && severity >= state().least.load(std::memory_order_relaxed);
}

void log(Severity severity, std::string_view line) noexcept {
  if (!is_logged(severity)) return;
  try {
    deliver(severity, line);
  } catch (...) {
    // A sink that fails must not stop the training.
  }
}

void say(Severity severity, std::string_view line) noexcept {
  if (!is_logged(severity)) return;
  try {
    log(severity, in_words_here(std::string(line)));
  } catch (...) {  // as in log
  }
}

}  // namespace lockstep
