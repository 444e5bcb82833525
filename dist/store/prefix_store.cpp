#include "dist/store/prefix_store.h"

#include <fmt/format.h>

namespace muster {

PrefixStore::PrefixStore(std::shared_ptr<Store> store, std::string prefix)
    : store_(std::move(store)), prefix_(std::move(prefix) + "/") {
  MUSTER_CHECK(store_ != nullptr, ErrorCode::kInvalidArgument,
               "PrefixStore: needs a store; got null for prefix \"{}\"", prefix_);
}

std::string PrefixStore::full(std::string_view key) const {
  return std::string(prefix_).append(key);
}

std::vector<std::string> PrefixStore::full(const std::vector<std::string>& keys) const {
  std::vector<std::string> all;
  all.reserve(keys.size());
  for (const std::string& key : keys) all.push_back(full(key));
  return all;
}

Result<void> PrefixStore::set(std::string_view key, std::string_view value) {
  return store_->set(full(key), value);
}

Result<std::string> PrefixStore::get(std::string_view key, Deadline deadline) {
  return store_->get(full(key), deadline);
}

Result<std::optional<std::string>> PrefixStore::try_get(std::string_view key) {
  return store_->try_get(full(key));
}

Result<std::vector<std::string>> PrefixStore::get_many(const std::vector<std::string>& keys,
                                                       Deadline deadline) {
  return store_->get_many(full(keys), deadline);
}

Result<int64_t> PrefixStore::add(std::string_view key, int64_t delta) {
  return store_->add(full(key), delta);
}

Result<std::string> PrefixStore::compare_set(std::string_view key, std::string_view expected,
                                             std::string_view desired) {
  return store_->compare_set(full(key), expected, desired);
}

Result<void> PrefixStore::wait(const std::vector<std::string>& keys, Deadline deadline) {
  return store_->wait(full(keys), deadline);
}

Result<bool> PrefixStore::check(const std::vector<std::string>& keys) {
  return store_->check(full(keys));
}

Result<bool> PrefixStore::remove(std::string_view key) { return store_->remove(full(key)); }

Result<void> PrefixStore::append(std::string_view key, std::string_view value) {
  return store_->append(full(key), value);
}

Result<int64_t> PrefixStore::num_keys() { return std::ssize(MUSTER_TRY(list_keys())); }

Result<std::vector<std::string>> PrefixStore::list_keys() {
  std::vector<std::string> own;
  for (const std::string& key : MUSTER_TRY(store_->list_keys())) {
    if (key.starts_with(prefix_)) own.push_back(key.substr(prefix_.size()));
  }
  return own;
}

void PrefixStore::cancel() { store_->cancel(); }

std::string PrefixStore::describe() const {
  return fmt::format("{}, prefix \"{}\"", store_->describe(), prefix_);
}

}  // namespace muster
