#pragma once
/// Durations, deadlines and clocks.
///
/// Every wait of the project takes a Deadline. Time is monotonic; wall time appears only in records
/// that people read. Code that decides by time takes a Clock, so that tests pass a ManualClock.

#include <atomic>
#include <chrono>
#include <cstdint>
#include <string>
#include <string_view>

#include "core/base/result.h"

namespace muster {

using Duration = std::chrono::nanoseconds;
using TimePoint = std::chrono::steady_clock::time_point;
using namespace std::chrono_literals;  // NOLINT: 30s, 10ms are the notation for Duration everywhere

/// Monotonic time.
class Clock {
 public:
  virtual ~Clock() = default;
  /// @thread any
  [[nodiscard]] virtual TimePoint now() const = 0;
};

/// The monotonic clock of the system; the only instance is real_clock().
const Clock& real_clock() noexcept;

/// A clock that moves only when told to.
class ManualClock final : public Clock {
 public:
  [[nodiscard]] TimePoint now() const override { return TimePoint(Duration(since_start_.load())); }
  void advance(Duration by) { since_start_ += by.count(); }

 private:
  std::atomic<int64_t> since_start_{1};
};

/// A point in time after which a wait must fail with kTimeout.
class Deadline {
 public:
  static Deadline after(Duration duration, const Clock& clock = real_clock()) {
    return Deadline(clock.now() + duration, &clock);
  }
  static Deadline never() { return Deadline(TimePoint::max(), &real_clock()); }

  [[nodiscard]] bool passed() const { return !is_never() && clock_->now() >= at_; }
  [[nodiscard]] bool is_never() const { return at_ == TimePoint::max(); }
  [[nodiscard]] TimePoint at() const { return at_; }
  /// Time left, never negative; Duration::max() for never().
  [[nodiscard]] Duration left() const;
  /// Milliseconds left for poll(2): rounded up, -1 for never().
  [[nodiscard]] int poll_ms() const;

 private:
  Deadline(TimePoint at, const Clock* clock) : at_(at), clock_(clock) {}
  TimePoint at_;
  const Clock* clock_;
};

/// "1.5 s", "20 ms", "3 min": the shortest exact-looking form for people.
std::string format_duration(Duration duration);

/// Reads "30 s", "500ms", "2 min", "1 h", "250 us", and bare numbers as seconds.
/// @error kInvalidArgument unknown unit, negative or not a number
Result<Duration> parse_duration(std::string_view text);

/// Wall time as "2026-01-31T12:00:00.123Z", for records.
std::string wall_time_iso8601();

/// Seconds as a double, for reports.
inline double to_seconds(Duration duration) {
  return std::chrono::duration<double>(duration).count();
}

}  // namespace muster
