#include "dist/group/waits.h"

#include <fmt/format.h>

#include <algorithm>
#include <mutex>

#include "dist/group/backend.h"

namespace muster {
namespace {
// What has just come may have been woken to be ended, like this process.
constexpr Duration kRecent = 1s;

struct Wait {
  std::shared_ptr<Work> work;
  std::vector<int> global_ranks;
  TimePoint since;
  std::string late;  // as last seen
};

// Never destroyed: a thread may ask while the process ends.
struct Waits {
  std::mutex mutex;
  std::vector<Wait> all;  // guarded by mutex
  struct Over {
    std::string text;  // its work, and with it a group, must not be kept
    TimePoint ended{};
  } last;  // of those for which somebody was seen to be late; guarded by mutex
};
Waits& waits() {
  static Waits& instance = *new Waits;
  return instance;
}

// " for group rank 2 (global 2)", or nothing.
std::string describe_late(const Wait& wait) {
  std::vector<std::string> late;
  for (const int rank : wait.work->late_ranks()) {
    late.push_back(rank_name(rank, wait.global_ranks[static_cast<size_t>(rank)]));
  }
  return late.empty() ? "" : fmt::format(" for {}", fmt::join(late, ", "));
}
}  // namespace

WaitScope::WaitScope(std::shared_ptr<Work> work, const std::vector<int>& global_ranks)
    : work_(std::move(work)) {
  const std::lock_guard lock(waits().mutex);
  waits().all.push_back({work_, global_ranks, real_clock().now(), {}});
}

WaitScope::~WaitScope() {
  const std::lock_guard lock(waits().mutex);
  std::erase_if(waits().all, [this](const Wait& wait) {
    if (wait.work != work_) return false;
    const TimePoint now = real_clock().now();
    if (!wait.late.empty()) {
      waits().last = {fmt::format("{} had waited {:.1f} s{}", wait.work->descriptor().describe(),
                                  to_seconds(now - wait.since), wait.late),
                      now};
    }
    return true;
  });
}

std::vector<LongWait> long_waits(Duration least) {
  std::vector<Wait> all;
  Waits::Over last;
  {
    const std::lock_guard lock(waits().mutex);
    all = waits().all;
    last = waits().last;
  }
  std::vector<LongWait> found;
  const Duration ago = real_clock().now() - last.ended;
  if (!last.text.empty() && ago < kRecent)
    found.push_back({fmt::format("{}, until {:.3f} s ago", last.text, to_seconds(ago))});
  for (Wait& wait : all) {
    const Duration waited = real_clock().now() - wait.since;
    if (waited < least) continue;
    if (std::string late = describe_late(wait); !late.empty()) {
      wait.late = std::move(late);
      const std::lock_guard lock(waits().mutex);
      for (Wait& kept : waits().all) {
        if (kept.work == wait.work) kept.late = wait.late;
      }
    }
    found.push_back({fmt::format("{} has waited {:.1f} s{}", wait.work->descriptor().describe(),
                                 to_seconds(waited), wait.late),
                     wait.work->done()});
  }
  return found;
}
}  // namespace muster
