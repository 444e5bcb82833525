#pragma once
/// What every store does to its keys and values, without waiting, locking or input and output.
///
/// Hash store, file store and tcp server hold one each, so they agree by construction. Values are
/// shared, so that a reply in flight costs no copy. Not thread-safe: its owner serialises.

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "core/base/result.h"

namespace muster::internal {

/// Bytes that count themselves in a total for as long as anyone holds them.
class Blob {
 public:
  Blob(std::string bytes, std::shared_ptr<int64_t> total);
  ~Blob();
  Blob(const Blob&) = delete;
  Blob& operator=(const Blob&) = delete;
  void append(std::string_view more);
  [[nodiscard]] const std::string& bytes() const noexcept { return bytes_; }

 private:
  std::string bytes_;
  const std::shared_ptr<int64_t> total_nbytes_;
};
using SharedBytes = std::shared_ptr<Blob>;

/// The number that a counter's text stands for, read as strtoll does: blanks before and anything
/// after the digits are ignored. nullopt when there are no digits or it does not fit 64 bits.
std::optional<int64_t> parse_counter(std::string_view text);

class KeyTable {
 public:
  struct CompareSetOutcome {
    SharedBytes stored;  ///< null: the key is missing still
    bool written = false;
  };

  /// The value, or null.
  [[nodiscard]] SharedBytes find(std::string_view key) const;
  [[nodiscard]] bool contains(std::string_view key) const { return values_.contains(key); }
  void set(std::string_view key, std::string_view value);
  /// What add() would store. @error kFailedPrecondition the value is not a number
  [[nodiscard]] Result<int64_t> sum(std::string_view key, int64_t delta) const;
  /// Stores and returns the sum. @error as sum(); nothing changes
  Result<int64_t> add(std::string_view key, int64_t delta);
  /// True when the value is `expected`, or the key is missing and `expected` empty.
  [[nodiscard]] bool matches(std::string_view key, std::string_view expected) const;
  CompareSetOutcome compare_set(std::string_view key, std::string_view expected,
                                std::string_view desired);
  bool remove(std::string_view key);
  /// @error kInvalidArgument the value would grow above Store::kMaxValueNbytes; nothing changes
  Result<void> append(std::string_view key, std::string_view value);
  void clear() { values_.clear(); }

  [[nodiscard]] int64_t num_keys() const { return std::ssize(values_); }
  [[nodiscard]] std::vector<std::string> list_keys() const;
  /// Those of `keys` that are missing.
  [[nodiscard]] std::vector<std::string> missing(const std::vector<std::string>& keys) const;
  [[nodiscard]] const auto& entries() const { return values_; }

  /// Makes bytes that count in nbytes(), for values that are kept outside of the table.
  [[nodiscard]] SharedBytes hold(std::string_view bytes) const;
  /// All bytes alive: keys, values, and values that only a reply holds still.
  [[nodiscard]] int64_t nbytes() const noexcept { return *value_nbytes_ + key_nbytes_; }

 private:
  std::shared_ptr<int64_t> value_nbytes_ = std::make_shared<int64_t>(0);
  int64_t key_nbytes_ = 0;
  std::map<std::string, SharedBytes, std::less<>> values_;
};

}  // namespace muster::internal
