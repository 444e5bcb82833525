#pragma once
/// A store in the memory of one process, for ranks that are threads and for tests.

#include <condition_variable>
#include <memory>
#include <mutex>

#include "dist/store/store.h"

namespace muster {
namespace internal {
class KeyTable;
}

/// Shared by pointer: each rank's thread uses the same object.
class HashStore final : public Store {
 public:
  HashStore();
  ~HashStore() override;

  Result<void> set(std::string_view key, std::string_view value) override;
  Result<std::string> get(std::string_view key, Deadline deadline) override;
  Result<std::optional<std::string>> try_get(std::string_view key) override;
  Result<int64_t> add(std::string_view key, int64_t delta) override;
  Result<std::string> compare_set(std::string_view key, std::string_view expected,
                                  std::string_view desired) override;
  Result<void> wait(const std::vector<std::string>& keys, Deadline deadline) override;
  Result<bool> check(const std::vector<std::string>& keys) override;
  Result<bool> remove(std::string_view key) override;
  Result<void> append(std::string_view key, std::string_view value) override;
  Result<int64_t> num_keys() override;
  Result<std::vector<std::string>> list_keys() override;
  void cancel() override;
  [[nodiscard]] std::string describe() const override;

 private:
  Result<void> wait_locked(std::unique_lock<std::mutex>& lock, std::string_view operation,
                           const std::vector<std::string>& keys, Deadline deadline);
  [[nodiscard]] Result<void> check_alive(std::string_view operation) const;

  std::mutex mutex_;  // guards all below
  std::condition_variable changed_;
  std::unique_ptr<internal::KeyTable> table_;
  bool cancelled_ = false;
};

}  // namespace muster
