#pragma once
/// The last operations of a group, for error messages and post-mortems. A ring; costs no allocation
/// per operation beyond the descriptor's texts.

#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "core/base/time.h"
#include "dist/group/work.h"

namespace muster {

class FlightRecorder {
 public:
  explicit FlightRecorder(size_t capacity = 64) : capacity_(capacity) {}

  /// Notes a launch. @thread any
  void record(std::shared_ptr<Work> work);
  /// The last `count` operations, oldest first: "#417 reduce_scatter f32[8192] done".
  [[nodiscard]] std::vector<std::string> last(size_t count) const;
  /// All entries as a JSON array: kind, seq, group, shape, dtype, site, launched_ns, done.
  [[nodiscard]] std::string to_json() const;

 private:
  struct Entry {
    std::weak_ptr<Work> work;
    WorkDescriptor descriptor;
    int64_t launched_ns = 0;
  };
  [[nodiscard]] size_t oldest() const { return entries_.size() < capacity_ ? 0 : next_; }

  size_t capacity_;
  mutable std::mutex mutex_;
  std::vector<Entry> entries_;  // ring, guarded by mutex_
  size_t next_ = 0;
};

}  // namespace muster
