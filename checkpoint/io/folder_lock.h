#pragma once
/// An advisory lock on a folder that the kernel drops when its process dies.
///
/// Writers share the lock of their temporary folder, readers that of the checkpoint they read;
/// whoever wants to remove a folder must get it alone. So nothing in use is removed, and a kill
/// leaves no stale lock. Folders that are no real folders (in tests) are never locked.

#include <string>
#include <utility>

namespace muster::checkpoint {

class FolderLock {
 public:
  FolderLock() = default;
  ~FolderLock();
  FolderLock(FolderLock&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}
  FolderLock& operator=(FolderLock&& other) noexcept {
    std::swap(fd_, other.fd_);
    return *this;
  }

  /// Shares the lock, or holds nothing where the folder cannot be locked. Does not wait.
  static FolderLock share(const std::string& path);

  /// False when another process or thread shares the lock. Does not wait.
  static bool is_free(const std::string& path);

 private:
  explicit FolderLock(int fd) : fd_(fd) {}
  int fd_ = -1;
};

}  // namespace muster::checkpoint
