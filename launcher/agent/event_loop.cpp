#include "launcher/agent/event_loop.h"

#include <sys/epoll.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <ctime>

#include "core/base/error.h"

namespace muster {

EventLoop::EventLoop() : epoll_(::epoll_create1(EPOLL_CLOEXEC)) {
  MUSTER_CHECK(epoll_.is_open(), ErrorCode::kIo, "event loop: epoll_create1: {}",
               errno_text(errno));
}

bool EventLoop::add(int fd, uint32_t events, Callback callback) {
  epoll_event event{};
  event.events = events;
  event.data.fd = fd;
  if (::epoll_ctl(epoll_.get(), EPOLL_CTL_ADD, fd, &event) != 0) return false;
  callbacks_[fd] = std::move(callback);
  return true;
}

void EventLoop::modify(int fd, uint32_t events) {
  epoll_event event{};
  event.events = events;
  event.data.fd = fd;
  ::epoll_ctl(epoll_.get(), EPOLL_CTL_MOD, fd, &event);
}

void EventLoop::remove(int fd) {
  if (callbacks_.erase(fd) == 0) return;
  ::epoll_ctl(epoll_.get(), EPOLL_CTL_DEL, fd, nullptr);
}

void EventLoop::run_once(std::optional<TimePoint> until) {
  timespec left{};
  if (until) {
    const Duration wait = std::max(Duration(0), Duration(*until - real_clock().now()));
    left.tv_sec = wait / 1s;
    left.tv_nsec = (wait % 1s).count();
  }
  std::array<epoll_event, 64> events;
  const int n = ::epoll_pwait2(epoll_.get(), events.data(), static_cast<int>(events.size()),
                               until ? &left : nullptr, nullptr);
  for (int i = 0; i < n; ++i) {
    const auto found = callbacks_.find(events[i].data.fd);
    if (found == callbacks_.end()) continue;  // removed by a callback before
    const Callback callback = found->second;  // outlives its own removal
    callback(events[i].events);
  }
}

}  // namespace muster
