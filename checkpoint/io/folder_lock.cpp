#include "checkpoint/io/folder_lock.h"

#include <fcntl.h>
#include <sys/file.h>
#include <unistd.h>

#include <cerrno>

namespace muster::checkpoint {
namespace {
int open_folder(const std::string& path) {
  return ::open(path.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
}
}  // namespace

FolderLock::~FolderLock() {
  if (fd_ >= 0) ::close(fd_);
}

FolderLock FolderLock::share(const std::string& path) {
  const int fd = open_folder(path);
  if (fd < 0) return {};
  if (::flock(fd, LOCK_SH | LOCK_NB) != 0) {
    ::close(fd);
    return {};
  }
  return FolderLock(fd);
}

bool FolderLock::is_free(const std::string& path) {
  const int fd = open_folder(path);
  if (fd < 0) return true;
  const bool in_use = ::flock(fd, LOCK_EX | LOCK_NB) != 0 && errno == EWOULDBLOCK;
  ::close(fd);
  return !in_use;
}
}  // namespace muster::checkpoint
