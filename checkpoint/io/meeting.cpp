#include "checkpoint/io/meeting.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

namespace muster::checkpoint {
namespace {
// Half of what a store takes in one value. Longer texts travel in parts, which the main value
// announces as "#<count>"; texts are JSON objects, so they never begin with '#'.
constexpr size_t kPartNbytes = static_cast<size_t>(Store::kMaxValueNbytes / 2);

std::string part_key(const std::string& key, size_t part) {
  return fmt::format("{}.{}", key, part);
}
}  // namespace

std::string Meeting::report_key(const std::string& phase, int global_rank) const {
  return fmt::format("{}/{}/{}", options_.prefix, phase, global_rank);
}
std::string Meeting::verdict_key(const std::string& phase) const {
  return fmt::format("{}/{}/verdict", options_.prefix, phase);
}

Result<void> Meeting::put(const std::string& key, const std::string& text) {
  if (options_.store == nullptr) {
    local_[key] = text;
    return {};
  }
  sent_nbytes_ += static_cast<int64_t>(text.size());
  keys_.push_back(key);
  if (text.size() <= kPartNbytes) return options_.store->set(key, text);
  const size_t num_parts = (text.size() + kPartNbytes - 1) / kPartNbytes;
  for (size_t part = 0; part < num_parts; ++part) {
    keys_.push_back(part_key(key, part));
    MUSTER_TRY(options_.store->set(keys_.back(), text.substr(part * kPartNbytes, kPartNbytes)));
  }
  return options_.store->set(key, fmt::format("#{}", num_parts));
}

Result<std::string> Meeting::take(const std::string& key, Deadline deadline) {
  if (options_.store == nullptr) {
    const auto it = local_.find(key);
    MUSTER_ASSERT(it != local_.end(), "{}", key);
    return it->second;
  }
  std::string text = MUSTER_TRY(options_.store->get(key, deadline));
  if (text.empty() || text[0] != '#') return text;
  const size_t num_parts = std::stoul(text.substr(1));
  text.clear();
  for (size_t part = 0; part < num_parts; ++part)
    text += MUSTER_TRY(options_.store->get(part_key(key, part), deadline));
  return text;
}

Result<void> Meeting::report(const std::string& phase, const std::string& text) {
  return put(report_key(phase, options_.global_rank), text);
}

Result<std::vector<std::string>> Meeting::collect(const std::string& phase, Deadline deadline) {
  std::vector<std::string> reports;
  for (int global_rank = 0; global_rank < options_.world_size; ++global_rank) {
    Result<std::string> text = take(report_key(phase, global_rank), deadline);
    if (text.ok()) {
      reports.push_back(std::move(*text));
      continue;
    }
    if (text.error().code() != ErrorCode::kTimeout) return text.error();
    std::vector<int> absent{global_rank};
    for (int other = global_rank + 1; other < options_.world_size; ++other)
      if (!MUSTER_TRY(options_.store->check({report_key(phase, other)}))) absent.push_back(other);
    return make_error(ErrorCode::kTimeout,
                      "phase {}: all {} ranks must report; got nothing from global rank {}", phase,
                      options_.world_size, fmt::join(absent, ", "));
  }
  return reports;
}

Result<void> Meeting::announce(const std::string& phase, const std::string& text) {
  return put(verdict_key(phase), text);
}

Result<std::string> Meeting::hear(const std::string& phase, Deadline deadline) {
  Result<std::string> text = take(verdict_key(phase), deadline);
  if (!text.ok() && text.error().code() == ErrorCode::kTimeout) {
    return make_error(ErrorCode::kTimeout,
                      "phase {}: global rank 0 must announce a verdict; got nothing", phase);
  }
  return text;
}

void Meeting::clean_up() {
  // A key that stays behind costs memory, nothing else: each save and load has keys of its own.
  for (const std::string& key : keys_) {
    if (!options_.store->remove(key).ok()) return;
  }
  keys_.clear();
}
}  // namespace muster::checkpoint
