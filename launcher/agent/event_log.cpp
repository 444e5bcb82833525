#include "launcher/agent/event_log.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <nlohmann/json.hpp>
#include <utility>

#include "core/base/time.h"

namespace muster {

namespace {
// True when an earlier job was cut off in the middle of its last line.
bool ends_in_half_a_line(const std::string& path) {
  const UniqueFd fd(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
  struct stat status {};
  char last = '\n';
  return fd.is_open() && ::fstat(fd.get(), &status) == 0 && S_ISREG(status.st_mode) &&
         status.st_size > 0 && ::pread(fd.get(), &last, 1, status.st_size - 1) == 1 && last != '\n';
}

// A full disk must not end the job: a reader sees that job_end is missing.
void write_text(int fd, const std::string& text) {
  const ssize_t written = ::write(fd, text.data(), text.size());
  static_cast<void>(written);
}
}  // namespace

Result<EventLog> EventLog::open(const std::string& path) {
  EventLog log = waiting();
  MUSTER_TRY(log.open_file(path));
  return log;
}

EventLog EventLog::waiting() {
  EventLog log;
  log.is_waiting_ = true;
  return log;
}

Result<void> EventLog::open_file(const std::string& path) {
  if (!is_waiting_) return {};
  const bool is_torn = ends_in_half_a_line(path);
  fd_.reset(::open(path.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0644));
  if (!fd_.is_open()) {
    return make_error(ErrorCode::kIo, "event file {}: {}", path, errno_text(errno));
  }
  is_waiting_ = false;
  const std::string kept = (is_torn ? "\n" : "") + std::exchange(kept_, "");
  if (!kept.empty()) write_text(fd_.get(), kept);
  return {};
}

void EventLog::emit(const char* event, const nlohmann::ordered_json& fields) {
  if (!fd_.is_open() && !is_waiting_) return;
  nlohmann::ordered_json line;
  line["event"] = event;
  line["t_ns"] = real_clock().now().time_since_epoch().count();
  line.update(fields);
  const std::string text =
      line.dump(-1, ' ', false, nlohmann::ordered_json::error_handler_t::replace) + '\n';
  if (is_waiting_) {
    kept_ += text;
  } else {
    write_text(fd_.get(), text);
  }
}

}  // namespace muster
