#include "launcher/agent/run_lock.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/file.h>
#include <unistd.h>

#include <array>
#include <cerrno>

#include "core/base/file_system.h"
#include "core/base/log.h"
#include "core/base/text.h"
#include "core/base/time.h"
#include "launcher/agent/process_tree.h"

namespace muster {
namespace {
constexpr Duration kLockPatience = 1s;
constexpr int kNextTryMs = 5;  // flock(2) can wait, but not until a time

std::string read_start(int fd) {
  std::array<char, 256> buffer;
  const ssize_t n = ::pread(fd, buffer.data(), buffer.size(), 0);
  return n > 0 ? std::string(trim({buffer.data(), static_cast<size_t>(n)})) : "";
}
}  // namespace

Result<UniqueFd> lock_run_dir(const std::string& run_dir, const std::string& token_id) {
  const std::string path = path_join(run_dir, "job.lock");
  UniqueFd fd(::open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0644));
  if (!fd.is_open()) return make_error(ErrorCode::kIo, "{}: {}", path, errno_text(errno));
  const Deadline deadline = Deadline::after(kLockPatience);
  while (::flock(fd.get(), LOCK_EX | LOCK_NB) != 0) {
    if (errno == EWOULDBLOCK && !deadline.passed()) {
      ::poll(nullptr, 0, kNextTryMs);
    } else if (errno == EWOULDBLOCK) {
      return make_error(ErrorCode::kFailedPrecondition,
                        "run folder {}: must be used by one job at a time; job {} runs in it",
                        run_dir, read_start(fd.get()));
    } else if (errno != EINTR) {
      MUSTER_LOG(kWarn, "{}: cannot be locked ({}); do not run two jobs here", path,
                 errno_text(errno));
      return fd;
    }
  }
  const std::string earlier = read_start(fd.get());
  const int killed = earlier.empty() ? 0 : kill_by_token_id(earlier);
  if (killed > 0) {
    MUSTER_LOG(kWarn, "killed {} processes that job {} had left behind", killed, earlier);
  }
  const std::string text = token_id + "\n";
  if (::ftruncate(fd.get(), 0) != 0 ||
      ::pwrite(fd.get(), text.data(), text.size(), 0) != static_cast<ssize_t>(text.size())) {
    return make_error(ErrorCode::kIo, "{}: {}", path, errno_text(errno));
  }
  return fd;
}

}  // namespace muster
