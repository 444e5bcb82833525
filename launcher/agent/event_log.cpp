#include "launcher/agent/event_log.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <nlohmann/json.hpp>

#include "core/base/time.h"

namespace muster {

Result<EventLog> EventLog::open(const std::string& path) {
  EventLog log;
  log.fd_.reset(::open(path.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0644));
  if (!log.fd_.is_open()) {
    return make_error(ErrorCode::kIo, "event file {}: {}", path, errno_text(errno));
  }
  return log;
}

void EventLog::emit(const char* event, const nlohmann::ordered_json& fields) {
  if (!fd_.is_open()) return;
  nlohmann::ordered_json line;
  line["event"] = event;
  line["t_ns"] = real_clock().now().time_since_epoch().count();
  line.update(fields);
  const std::string text =
      line.dump(-1, ' ', false, nlohmann::ordered_json::error_handler_t::replace) + '\n';
  // A full disk must not end the job: a reader sees that job_end is missing.
  const ssize_t written = ::write(fd_.get(), text.data(), text.size());
  static_cast<void>(written);
}

}  // namespace muster
