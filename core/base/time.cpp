#include "core/base/time.h"

#include <fmt/chrono.h>
#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <climits>
#include <cmath>
#include <ctime>

namespace muster {
namespace {
class RealClock final : public Clock {
 public:
  [[nodiscard]] TimePoint now() const override { return std::chrono::steady_clock::now(); }
};
}  // namespace

// Never destroyed: threads ask for the time while the process ends.
const Clock& real_clock() noexcept {
  static const RealClock& clock = *new RealClock;
  return clock;
}

Duration Deadline::left() const {
  if (is_never()) return Duration::max();
  return std::max(Duration::zero(), Duration(at_ - clock_->now()));
}

int Deadline::poll_ms() const {
  if (is_never()) return -1;
  const auto ms = std::chrono::ceil<std::chrono::milliseconds>(left()).count();
  return static_cast<int>(std::min<int64_t>(ms, INT_MAX));
}

std::string format_duration(Duration duration) {
  const double seconds = to_seconds(duration);
  if (seconds >= 120) return fmt::format("{:.3g} min", seconds / 60);
  if (seconds >= 1 || seconds == 0) return fmt::format("{:.3g} s", seconds);
  if (seconds >= 1e-3) return fmt::format("{:.3g} ms", seconds * 1e3);
  return fmt::format("{:.3g} us", seconds * 1e6);
}

Result<Duration> parse_duration(std::string_view text) {
  const auto bad = [&] {
    return make_error(ErrorCode::kInvalidArgument,
                      "duration: a number and a unit (us, ms, s, min, h); got \"{}\"", text);
  };
  double number = 0;
  const char* end = text.data() + text.size();
  const auto [rest, status] = std::from_chars(text.data(), end, number);
  if (status != std::errc() || !(number >= 0) || !std::isfinite(number)) return bad();
  std::string_view unit(rest, static_cast<size_t>(end - rest));
  while (!unit.empty() && unit.front() == ' ') unit.remove_prefix(1);
  double scale = 0;
  if (unit == "us") scale = 1e-6;
  if (unit == "ms") scale = 1e-3;
  if (unit.empty() || unit == "s") scale = 1;
  if (unit == "min" || unit == "m") scale = 60;
  if (unit == "h") scale = 3600;
  if (scale == 0 || number * scale > 9e9) return bad();
  return Duration(static_cast<int64_t>(std::llround(number * scale * 1e9)));
}

std::string wall_time_iso8601() {
  const auto now = std::chrono::system_clock::now();
  const auto ms =
      std::chrono::duration_cast<std::chrono::milliseconds>(now.time_since_epoch()).count();
  return fmt::format("{:%Y-%m-%dT%H:%M:%S}.{:03}Z",
                     fmt::gmtime(static_cast<std::time_t>(ms / 1000)), ms % 1000);
}
}  // namespace muster
