#include "dist/store/hash_store.h"

#include "dist/store/internal/key_table.h"
#include "dist/store/internal/messages.h"

namespace muster {

using internal::check_entry;
using internal::check_key;
using internal::check_keys;

HashStore::HashStore() : table_(std::make_unique<internal::KeyTable>()) {}
HashStore::~HashStore() = default;

Result<void> HashStore::check_alive(std::string_view operation) const {
  if (cancelled_) return internal::cancelled(operation, describe());
  return {};
}

Result<void> HashStore::set(std::string_view key, std::string_view value) {
  MUSTER_TRY(check_entry("set", key, value));
  const std::lock_guard lock(mutex_);
  MUSTER_TRY(check_alive("set"));
  table_->set(key, value);
  changed_.notify_all();
  return {};
}

Result<std::string> HashStore::get(std::string_view key, Deadline deadline) {
  MUSTER_TRY(check_key("get", key));
  std::unique_lock lock(mutex_);
  MUSTER_TRY(wait_locked(lock, "get", {std::string(key)}, deadline));
  return table_->find(key)->bytes();
}

Result<std::optional<std::string>> HashStore::try_get(std::string_view key) {
  MUSTER_TRY(check_key("try_get", key));
  const std::lock_guard lock(mutex_);
  MUSTER_TRY(check_alive("try_get"));
  const internal::SharedBytes value = table_->find(key);
  if (!value) return std::optional<std::string>();
  return std::optional<std::string>(value->bytes());
}

Result<int64_t> HashStore::add(std::string_view key, int64_t delta) {
  MUSTER_TRY(check_key("add", key));
  const std::lock_guard lock(mutex_);
  MUSTER_TRY(check_alive("add"));
  const int64_t sum = MUSTER_TRY(table_->add(key, delta));
  changed_.notify_all();
  return sum;
}

Result<std::string> HashStore::compare_set(std::string_view key, std::string_view expected,
                                           std::string_view desired) {
  MUSTER_TRY(check_entry("compare_set", key, expected));
  MUSTER_TRY(check_entry("compare_set", key, desired));
  const std::lock_guard lock(mutex_);
  MUSTER_TRY(check_alive("compare_set"));
  const auto outcome = table_->compare_set(key, expected, desired);
  if (outcome.written) changed_.notify_all();
  return outcome.stored ? outcome.stored->bytes() : std::string();
}

Result<void> HashStore::wait(const std::vector<std::string>& keys, Deadline deadline) {
  MUSTER_TRY(check_keys("wait", keys));
  std::unique_lock lock(mutex_);
  return wait_locked(lock, "wait", keys, deadline);
}

Result<void> HashStore::wait_locked(std::unique_lock<std::mutex>& lock, std::string_view operation,
                                    const std::vector<std::string>& keys, Deadline deadline) {
  const TimePoint start = real_clock().now();
  while (true) {
    MUSTER_TRY(check_alive(operation));
    const std::vector<std::string> missing = table_->missing(keys);
    if (missing.empty()) return {};
    if (deadline.passed()) {
      return internal::missing_keys(operation, describe(), missing, real_clock().now() - start);
    }
    if (deadline.is_never()) {
      changed_.wait(lock);
    } else {
      changed_.wait_for(lock, deadline.left());
    }
  }
}

Result<bool> HashStore::check(const std::vector<std::string>& keys) {
  MUSTER_TRY(check_keys("check", keys));
  const std::lock_guard lock(mutex_);
  MUSTER_TRY(check_alive("check"));
  return table_->missing(keys).empty();
}

Result<bool> HashStore::remove(std::string_view key) {
  MUSTER_TRY(check_key("remove", key));
  const std::lock_guard lock(mutex_);
  MUSTER_TRY(check_alive("remove"));
  return table_->remove(key);
}

Result<void> HashStore::append(std::string_view key, std::string_view value) {
  MUSTER_TRY(check_entry("append", key, value));
  const std::lock_guard lock(mutex_);
  MUSTER_TRY(check_alive("append"));
  MUSTER_TRY(table_->append(key, value));
  changed_.notify_all();
  return {};
}

Result<int64_t> HashStore::num_keys() {
  const std::lock_guard lock(mutex_);
  MUSTER_TRY(check_alive("num_keys"));
  return table_->num_keys();
}

Result<std::vector<std::string>> HashStore::list_keys() {
  const std::lock_guard lock(mutex_);
  MUSTER_TRY(check_alive("list_keys"));
  return table_->list_keys();
}

void HashStore::cancel() {
  const std::lock_guard lock(mutex_);
  cancelled_ = true;
  changed_.notify_all();
}

std::string HashStore::describe() const { return "hash store"; }

}  // namespace muster
