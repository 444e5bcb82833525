#pragma once
/// A descriptor that becomes readable at a time, for an event loop that has others besides.

#include <optional>

#include "dist/net/sockets.h"

namespace muster::net {

class Alarm {
 public:
  /// @error kIo
  static Result<Alarm> open();
  [[nodiscard]] int fd() const noexcept { return fd_.get(); }

  /// Readable from `at` on, until the next call; never without one.
  void set(std::optional<TimePoint> at);

 private:
  explicit Alarm(UniqueFd fd) : fd_(std::move(fd)) {}
  UniqueFd fd_;
  std::optional<TimePoint> at_;
};

}  // namespace muster::net
