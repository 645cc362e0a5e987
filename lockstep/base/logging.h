#pragma once

#include <functional>
#include <string>
#include <string_view>

#include "lockstep/base/export.h"

namespace lockstep {

enum class Severity { Debug, Info, Warning, Error, Silent };

/// Receives every line that is loud enough. Called from any thread, one call at a time.
using LogSink = std::function<void(Severity, std::string_view)>;

/// Sends lines to `sink` instead of standard error; an empty sink restores the default.
/// Do not log from inside a sink.
LOCKSTEP_EXPORT void set_log_sink(LogSink sink);

/// Lines below `severity` are dropped. The default is Info, or what the environment variable LOCKSTEP_LOG names
/// (debug, info, warning, error, silent).
LOCKSTEP_EXPORT void set_log_severity(Severity severity);
LOCKSTEP_EXPORT bool is_logged(Severity severity);

LOCKSTEP_EXPORT void log(Severity severity, std::string_view line);
inline void log_info(std::string_view line) { log(Severity::Info, line); }
inline void log_warning(std::string_view line) { log(Severity::Warning, line); }

}  // namespace lockstep
