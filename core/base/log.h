#pragma once
/// One facade for logging: leveled lines on stderr, prefixed with the role of the process.
///
/// A line is `2026-01-31T12:00:00.123Z I agent: text`. It is written with one write(2), so lines of
/// several processes on one pipe do not mix. Not a metrics channel: those go to metrics.jsonl.

#include <fmt/core.h>

#include <string>
#include <string_view>

namespace muster {

enum class LogLevel { kDebug, kInfo, kWarn, kError, kOff };

/// Sets the name that prefixes each line, e.g. "agent" or "rank 3". @thread call before threads
/// start
void set_log_role(std::string role);

/// Lines below `level` are dropped. The environment variable MUSTER_LOG (debug, info, warn, error,
/// off) sets the initial level; the default is info.
void set_log_level(LogLevel level);
[[nodiscard]] bool log_enabled(LogLevel level) noexcept;

/// Writes one line. @thread any
void log_line(LogLevel level, std::string_view text);

}  // namespace muster

/// MUSTER_LOG(kInfo, "format", args...): formats only when the level is on.
#define MUSTER_LOG(level, ...)                                                   \
  do {                                                                           \
    if (::muster::log_enabled(::muster::LogLevel::level)) {                      \
      ::muster::log_line(::muster::LogLevel::level, ::fmt::format(__VA_ARGS__)); \
    }                                                                            \
  } while (false)
