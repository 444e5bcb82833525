#include "dist/store/internal/key_table.h"

#include <charconv>

#include "dist/store/internal/messages.h"

namespace muster::internal {
namespace {
// What a map node, a Blob and their control blocks cost beside the bytes themselves.
constexpr int64_t kEntryOverheadNbytes = 192;
}  // namespace

Blob::Blob(std::string bytes, std::shared_ptr<int64_t> total)
    : bytes_(std::move(bytes)), total_nbytes_(std::move(total)) {
  *total_nbytes_ += std::ssize(bytes_);
}

Blob::~Blob() { *total_nbytes_ -= std::ssize(bytes_); }

void Blob::append(std::string_view more) {
  bytes_.append(more);
  *total_nbytes_ += std::ssize(more);
}

std::optional<int64_t> parse_counter(std::string_view text) {
  constexpr std::string_view kBlanks = " \t\n\v\f\r";
  text.remove_prefix(std::min(text.find_first_not_of(kBlanks), text.size()));
  if (text.starts_with('+') && !text.starts_with("+-")) text.remove_prefix(1);
  int64_t number = 0;
  const auto [rest, status] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (status != std::errc()) return std::nullopt;
  return number;
}

SharedBytes KeyTable::hold(std::string_view bytes) const {
  return std::make_shared<Blob>(std::string(bytes), value_nbytes_);
}

SharedBytes KeyTable::find(std::string_view key) const {
  const auto found = values_.find(key);
  return found == values_.end() ? nullptr : found->second;
}

void KeyTable::set(std::string_view key, std::string_view value) {
  const auto found = values_.find(key);
  if (found != values_.end()) {
    found->second = hold(value);
    return;
  }
  values_.emplace(key, hold(value));
  key_nbytes_ += std::ssize(key) + kEntryOverheadNbytes;
}

Result<int64_t> KeyTable::sum(std::string_view key, int64_t delta) const {
  int64_t before = 0;
  if (const SharedBytes value = find(key)) {
    const std::optional<int64_t> number = parse_counter(value->bytes());
    if (!number) return not_a_counter(key, value->bytes());
    before = *number;
  }
  return static_cast<int64_t>(static_cast<uint64_t>(before) + static_cast<uint64_t>(delta));
}

Result<int64_t> KeyTable::add(std::string_view key, int64_t delta) {
  const int64_t after = MUSTER_TRY(sum(key, delta));
  set(key, std::to_string(after));
  return after;
}

bool KeyTable::matches(std::string_view key, std::string_view expected) const {
  const SharedBytes value = find(key);
  return value ? value->bytes() == expected : expected.empty();
}

KeyTable::CompareSetOutcome KeyTable::compare_set(std::string_view key, std::string_view expected,
                                                  std::string_view desired) {
  const bool written = matches(key, expected);
  if (written) set(key, desired);
  return {.stored = find(key), .written = written};
}

bool KeyTable::remove(std::string_view key) {
  const auto found = values_.find(key);
  if (found == values_.end()) return false;
  values_.erase(found);
  key_nbytes_ -= std::ssize(key) + kEntryOverheadNbytes;
  return true;
}

Result<void> KeyTable::append(std::string_view key, std::string_view value) {
  const auto found = values_.find(key);
  if (found == values_.end()) {
    set(key, value);
    return {};
  }
  MUSTER_TRY(check_grown_value(key, std::ssize(found->second->bytes()) + std::ssize(value)));
  // A reply that is being sent must keep the bytes that it announced.
  if (found->second.use_count() > 1) found->second = hold(found->second->bytes());
  found->second->append(value);
  return {};
}

std::vector<std::string> KeyTable::list_keys() const {
  std::vector<std::string> keys;
  keys.reserve(values_.size());
  for (const auto& [key, value] : values_) keys.push_back(key);
  return keys;
}

std::vector<std::string> KeyTable::missing(const std::vector<std::string>& keys) const {
  std::vector<std::string> absent;
  for (const std::string& key : keys) {
    if (!contains(key)) absent.push_back(key);
  }
  return absent;
}

}  // namespace muster::internal
