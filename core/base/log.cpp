#include "core/base/log.h"

#include <spdlog/pattern_formatter.h>
#include <spdlog/sinks/base_sink.h>
#include <spdlog/spdlog.h>
#include <unistd.h>

#include <atomic>
#include <cstdlib>
#include <memory>
#include <mutex>

#include "core/base/time.h"

namespace muster {
namespace {
// One write(2) a line: stdio buffering would mix lines of processes that share a pipe.
class FdSink final : public spdlog::sinks::base_sink<std::mutex> {
 protected:
  void sink_it_(const spdlog::details::log_msg& msg) override {
    spdlog::memory_buf_t line;
    formatter_->format(msg, line);
    const char* at = line.data();
    size_t left = line.size();
    while (left > 0) {
      const ssize_t n = ::write(STDERR_FILENO, at, left);
      if (n <= 0) return;
      at += n;
      left -= static_cast<size_t>(n);
    }
  }
  void flush_() override {}
};

LogLevel level_from_environment() {
  const char* text = std::getenv("MUSTER_LOG");
  const std::string_view name = text == nullptr ? "" : text;
  if (name == "debug") return LogLevel::kDebug;
  if (name == "warn") return LogLevel::kWarn;
  if (name == "error") return LogLevel::kError;
  if (name == "off") return LogLevel::kOff;
  return LogLevel::kInfo;
}

std::atomic<LogLevel>& current_level() {
  static std::atomic<LogLevel> level{level_from_environment()};
  return level;
}

std::string& role() {
  static std::string& name = *new std::string("muster");  // never destroyed, like the logger
  return name;
}

// Leaked on purpose: logging must work in destructors of static objects.
spdlog::logger& logger() {
  static auto* instance = [] {
    auto* made = new spdlog::logger("muster", std::make_shared<FdSink>());
    made->set_pattern("%v");
    made->set_level(spdlog::level::trace);
    return made;
  }();
  return *instance;
}
}  // namespace

void set_log_role(std::string name) { role() = std::move(name); }
void set_log_level(LogLevel level) { current_level() = level; }
bool log_enabled(LogLevel level) noexcept {
  return level >= current_level().load(std::memory_order_relaxed);
}

void log_line(LogLevel level, std::string_view text) {
  const char letter = "DIWE-"[static_cast<int>(level)];
  logger().info("{} {} {}: {}", wall_time_iso8601(), letter, role(), text);
}
}  // namespace muster
