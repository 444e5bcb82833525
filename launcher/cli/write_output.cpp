#include "launcher/cli/write_output.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>

#include "core/base/file_system.h"
#include "core/base/text.h"
#include "launcher/agent/unique_fd.h"

namespace muster {
namespace {
Result<void> write_through(const std::string& path, std::string_view text) {
  const UniqueFd fd(::open(path.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644));
  if (!fd.is_open()) return make_error(ErrorCode::kIo, "open {}: {}", path, errno_text(errno));
  while (!text.empty()) {
    const ssize_t n = ::write(fd.get(), text.data(), text.size());
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) return make_error(ErrorCode::kIo, "write {}: {}", path, errno_text(errno));
    text.remove_prefix(static_cast<size_t>(n));
  }
  return {};
}
}  // namespace

Result<void> check_output(const std::string& path) {
  struct stat info {};
  const std::string folder = path_parent(path);
  if (::stat(path.c_str(), &info) == 0 && S_ISDIR(info.st_mode)) {
    return make_error(ErrorCode::kIo, "{}: must be a file to write; got a folder", path);
  }
  if (::stat(folder.c_str(), &info) != 0 || !S_ISDIR(info.st_mode)) {
    return make_error(ErrorCode::kNotFound, "{}: must lie in a folder; there is no {}", path,
                      folder);
  }
  const std::string& asked = ::access(path.c_str(), F_OK) == 0 ? path : folder;
  if (::access(asked.c_str(), W_OK) == 0) return {};
  return make_error(ErrorCode::kIo, "{}: must be writable: {}", asked, errno_text(errno));
}

Result<void> write_output(const std::string& path, std::string_view text) {
  struct stat info {};
  const bool is_there = ::lstat(path.c_str(), &info) == 0;
  if (is_there && !S_ISREG(info.st_mode)) return write_through(path, text);
  const Result<void> written = write_file_durably(real_file_system(), path, text);
  if (!written.ok()) ::unlink((path + ".tmp").c_str());
  return written;
}
}  // namespace muster
