#include "dist/net/alarm.h"

#include <sys/timerfd.h>

#include <cerrno>

namespace muster::net {

Result<Alarm> Alarm::open() {
  UniqueFd fd(::timerfd_create(CLOCK_MONOTONIC, TFD_CLOEXEC | TFD_NONBLOCK));
  if (!fd) return make_error(ErrorCode::kIo, "timerfd: {}", errno_text(errno));
  return Alarm(std::move(fd));
}

void Alarm::set(std::optional<TimePoint> at) {
  if (at == at_) return;
  at_ = at;
  itimerspec spec{};  // all zero: never
  if (at) {
    // Setting it also takes an earlier expiry back. A time that has passed counts, zero would not.
    const Duration since = std::max<Duration>(at->time_since_epoch(), 1ns);
    spec.it_value.tv_sec = since / 1s;
    spec.it_value.tv_nsec = (since % 1s).count();
  }
  ::timerfd_settime(fd_.get(), TFD_TIMER_ABSTIME, &spec, nullptr);
}

}  // namespace muster::net
