#pragma once
/// One epoll set: callbacks by descriptor, waited for until an event or a time.
///
/// Single-threaded. A callback may add, change and remove descriptors, its own included. Not a
/// timer queue: the owner knows its one next deadline and passes it to run_once.

#include <cstdint>
#include <functional>
#include <optional>
#include <unordered_map>

#include "core/base/time.h"
#include "launcher/agent/unique_fd.h"

namespace muster {

class EventLoop {
 public:
  /// Told the epoll events (EPOLLIN, ...) that are ready.
  using Callback = std::function<void(uint32_t)>;

  /// @error throws kIo: no descriptors left
  EventLoop();

  /// Watches `fd` (which stays the caller's). False for descriptors that are always ready, such as
  /// regular files, which epoll refuses.
  bool add(int fd, uint32_t events, Callback callback);
  /// Changes what is waited for; 0 pauses.
  void modify(int fd, uint32_t events);
  /// Forgets `fd`; call it before closing. Unknown ones are ignored.
  void remove(int fd);

  /// Waits until an event comes or `until` has passed, and runs the callbacks of what is ready.
  /// @blocks at most until `until`; for ever without one
  void run_once(std::optional<TimePoint> until);

 private:
  UniqueFd epoll_;
  std::unordered_map<int, Callback> callbacks_;
};

}  // namespace muster
