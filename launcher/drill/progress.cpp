#include "launcher/drill/progress.h"

#include <fmt/format.h>

#include <cstdio>
#include <memory>

namespace muster {

std::vector<StepRecord> MetricsFollower::read_new() {
  std::vector<StepRecord> records;
  const std::unique_ptr<std::FILE, int (*)(std::FILE*)> file(std::fopen(path_.c_str(), "re"),
                                                             std::fclose);
  if (file == nullptr || std::fseek(file.get(), offset_, SEEK_SET) != 0) return records;
  char buffer[16384];
  size_t n = 0;
  while ((n = std::fread(buffer, 1, sizeof(buffer), file.get())) > 0) {
    offset_ += static_cast<int64_t>(n);
    half_line_.append(buffer, n);
  }
  size_t from = 0;
  for (size_t end = half_line_.find('\n'); end != std::string::npos;
       end = half_line_.find('\n', from)) {
    if (auto record = read_step_record(std::string_view(half_line_).substr(from, end - from))) {
      records.push_back(std::move(*record));
    }
    from = end + 1;
  }
  half_line_.erase(0, from);
  return records;
}

void ProgressMeter::saw(const StepRecord& step, int64_t now_ns) {
  if (first_step_seen_ns_.emplace(step.attempt, now_ns).second) attempt_first_step_ = step.step;
  last_ = step;
  last_seen_ns_ = now_ns;
  has_step_ = true;
}

std::string ProgressMeter::line() const {
  if (!has_step_) return fmt::format("{}: starting", name_);
  std::string text = fmt::format("{}: step {} of {}, loss {:.4f}, {:.1f} k tokens/s", name_,
                                 last_.step, steps_, last_.loss, last_.tokens_per_s / 1e3);
  const int64_t taken_ns = last_seen_ns_ - first_step_seen_ns_.at(last_.attempt);
  const int64_t done = last_.step - attempt_first_step_;
  if (done > 0 && last_.step < steps_) {
    const double ns_a_step = static_cast<double>(taken_ns) / static_cast<double>(done);
    const double left_ns = ns_a_step * static_cast<double>(steps_ - last_.step);
    text += fmt::format(", {} left", format_duration(Duration(static_cast<int64_t>(left_ns))));
  }
  if (last_.attempt > 0) text += fmt::format(", attempt {}", last_.attempt);
  return text;
}
}  // namespace muster
