#include "dist/group/flight_recorder.h"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>

namespace muster {

void FlightRecorder::record(std::shared_ptr<Work> work) {
  Entry entry{work, work->descriptor(), real_clock().now().time_since_epoch().count()};
  const std::lock_guard lock(mutex_);
  if (entries_.size() < capacity_) {
    entries_.push_back(std::move(entry));
  } else {
    entries_[next_] = std::move(entry);
  }
  next_ = (next_ + 1) % capacity_;
}

std::vector<std::string> FlightRecorder::last(size_t count) const {
  const std::lock_guard lock(mutex_);
  count = std::min(count, entries_.size());
  std::vector<std::string> lines;
  for (size_t i = 0; i < count; ++i) {
    const Entry& entry = entries_[(oldest() + entries_.size() - count + i) % entries_.size()];
    const std::shared_ptr<Work> work = entry.work.lock();
    lines.push_back(entry.descriptor.describe() + (work && !work->done() ? ", pending" : ", done"));
  }
  return lines;
}

std::string FlightRecorder::to_json() const {
  const std::lock_guard lock(mutex_);
  nlohmann::json array = nlohmann::json::array();
  for (size_t i = 0; i < entries_.size(); ++i) {
    const Entry& entry = entries_[(oldest() + i) % entries_.size()];
    const std::shared_ptr<Work> work = entry.work.lock();
    const WorkDescriptor& what = entry.descriptor;
    array.push_back({{"kind", std::string(to_string(what.kind))},
                     {"seq", what.seq},
                     {"group", what.group},
                     {"dtype", std::string(to_string(what.dtype))},
                     {"shape", to_string(Dims(what.sizes))},
                     {"site", fmt::format("{}:{}", what.file, what.line)},
                     {"launched_ns", entry.launched_ns},
                     {"done", !work || work->done()}});
  }
  return array.dump();
}
}  // namespace muster
