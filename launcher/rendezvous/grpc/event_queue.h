#pragma once
/// Where gRPC's threads leave what has happened until the agent takes it.

#include <sys/eventfd.h>
#include <unistd.h>

#include <cstdint>
#include <mutex>
#include <utility>
#include <vector>

#include "launcher/rendezvous/link.h"

namespace muster {

/// @thread any
class EventQueue {
 public:
  EventQueue() : fd_(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)) {}
  ~EventQueue() {
    if (fd_ >= 0) ::close(fd_);
  }
  EventQueue(const EventQueue&) = delete;
  EventQueue& operator=(const EventQueue&) = delete;

  /// Readable while the queue holds something.
  [[nodiscard]] int fd() const noexcept { return fd_; }

  void push(LinkEvent event) {
    const std::lock_guard lock(mutex_);
    events_.push_back(std::move(event));
    const uint64_t one = 1;
    const ssize_t written = ::write(fd_, &one, sizeof(one));
    static_cast<void>(written);  // fails only when the count is full, and then it is readable
  }

  std::vector<LinkEvent> take() {
    const std::lock_guard lock(mutex_);
    uint64_t count = 0;
    const ssize_t got = ::read(fd_, &count, sizeof(count));
    static_cast<void>(got);
    return std::exchange(events_, {});
  }

 private:
  const int fd_;
  std::mutex mutex_;
  std::vector<LinkEvent> events_;  // guarded by mutex_
};

}  // namespace muster
