#pragma once

#include <functional>
#include <string_view>

#include "lockstep/base/export.h"

namespace lockstep {

/// How important a line of the log is; `Silent` is only for `set_log_severity`.
enum class Severity { Debug, Info, Warning, Error, Silent };

/// Receives every line of sufficient severity. Called from any thread, one call at a time. Its exceptions are dropped.
using LogSink = std::function<void(Severity, std::string_view)>;

/// Sends lines to `sink` instead of standard error; an empty sink restores the default. Returns when the old sink is no
/// longer in use, so it must not be called from inside a sink. Lines logged by a sink itself go to standard error.
///
///     set_log_sink([](Severity, std::string_view line) { my_logger.write(line); });
LOCKSTEP_EXPORT void set_log_sink(LogSink sink);

/// Lines below `severity` are dropped; Silent drops all. The default is Info, or the value of the environment variable
/// LOCKSTEP_LOG (debug, info, warning, error, silent).
LOCKSTEP_EXPORT void set_log_severity(Severity severity);
LOCKSTEP_EXPORT bool is_logged(Severity severity) noexcept;

/// Sends a line to the sink if it is loud enough.
LOCKSTEP_EXPORT void log(Severity severity, std::string_view line) noexcept;
inline void log_info(std::string_view line) noexcept { log(Severity::Info, line); }
inline void log_warning(std::string_view line) noexcept { log(Severity::Warning, line); }

/// For library code: the same in the terms of the strategy that the line is about (base/vocabulary.h).
LOCKSTEP_EXPORT void say(Severity severity, std::string_view line) noexcept;
inline void say_info(std::string_view line) noexcept { say(Severity::Info, line); }
inline void say_warning(std::string_view line) noexcept { say(Severity::Warning, line); }

}  // namespace lockstep
