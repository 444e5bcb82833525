#pragma once
/// What this process waits for in ProcessGroup::run(): for the last words of a rank that is ended.

#include <memory>
#include <string>
#include <vector>

#include "core/base/time.h"
#include "dist/group/work.h"

namespace muster {

/// While it lives, `work` counts as waited for.
class WaitScope {
 public:
  /// `global_ranks` of the group.
  WaitScope(std::shared_ptr<Work> work, const std::vector<int>& global_ranks);
  ~WaitScope();
  WaitScope(const WaitScope&) = delete;
  WaitScope& operator=(const WaitScope&) = delete;

 private:
  const std::shared_ptr<Work> work_;
};

struct LongWait {
  /// "all_reduce #418 f32[4096] sum in group dp at train/loop.cpp:88 has waited 3.0 s for group
  /// rank 2 (global 2)", without the end where nobody was seen to be late.
  std::string text;
  bool is_over = false;  ///< its thread is about to hear how it ended
};
/// The waits that have lasted for `least`, with who was late when this was last asked and somebody
/// was: a stopped rank comes when it is woken to be ended. @thread any
std::vector<LongWait> long_waits(Duration least);

}  // namespace muster
