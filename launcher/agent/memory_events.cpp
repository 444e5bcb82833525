#include "launcher/agent/memory_events.h"

#include <unistd.h>

#include <cstdlib>

#include "core/base/text.h"
#include "launcher/agent/proc_file.h"

namespace muster {

std::string internal::memory_events_path(const std::string& proc_self_cgroup) {
  for (const std::string& line : split(proc_self_cgroup, '\n')) {
    const std::vector<std::string> fields = split(line, ':');
    if (fields.size() != 3) continue;
    std::string path;
    if (fields[1] == "memory") path = "/sys/fs/cgroup/memory" + fields[2] + "/memory.oom_control";
    if (fields[1].empty()) path = "/sys/fs/cgroup" + fields[2] + "/memory.events";
    if (!path.empty() && ::access(path.c_str(), R_OK) == 0) return path;
  }
  return "";
}

int64_t internal::parse_oom_kill(const std::string& text) {
  for (const std::string& line : split(text, '\n')) {
    if (line.starts_with("oom_kill ")) return std::atoll(line.c_str() + 9);
  }
  return -1;
}

int64_t count_memory_limit_kills() {
  const std::string path = internal::memory_events_path(read_kernel_file("/proc/self/cgroup"));
  if (path.empty()) return -1;
  return internal::parse_oom_kill(read_kernel_file(path.c_str()));
}

}  // namespace muster
