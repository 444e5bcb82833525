#pragma once
/// A store within a store: every key gets `<prefix>/` in front.
///
/// One prefix a process group, attempt or generation ("gen7") keeps what one wrote away from the
/// others. It fences by name only: whoever knows the old prefix can still write there.

#include <memory>
#include <string>

#include "dist/store/store.h"

namespace muster {

/// @source c10d PrefixStore, except that num_keys() and list_keys() see this prefix only
class PrefixStore final : public Store {
 public:
  /// @owns a share of `store`; keys become `prefix + "/" + key`
  PrefixStore(std::shared_ptr<Store> store, std::string prefix);

  Result<void> set(std::string_view key, std::string_view value) override;
  Result<std::string> get(std::string_view key, Deadline deadline) override;
  Result<std::optional<std::string>> try_get(std::string_view key) override;
  Result<std::vector<std::string>> get_many(const std::vector<std::string>& keys,
                                            Deadline deadline) override;
  Result<int64_t> add(std::string_view key, int64_t delta) override;
  Result<std::string> compare_set(std::string_view key, std::string_view expected,
                                  std::string_view desired) override;
  Result<void> wait(const std::vector<std::string>& keys, Deadline deadline) override;
  Result<bool> check(const std::vector<std::string>& keys) override;
  Result<bool> remove(std::string_view key) override;
  Result<void> append(std::string_view key, std::string_view value) override;
  Result<int64_t> num_keys() override;
  Result<std::vector<std::string>> list_keys() override;
  /// Cancels the store below as well, and with it every other prefix on it.
  void cancel() override;
  [[nodiscard]] std::string describe() const override;

 private:
  [[nodiscard]] std::string full(std::string_view key) const;
  [[nodiscard]] std::vector<std::string> full(const std::vector<std::string>& keys) const;

  const std::shared_ptr<Store> store_;
  const std::string prefix_;  // with the slash
};

}  // namespace muster
