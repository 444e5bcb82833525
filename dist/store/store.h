#pragma once
/// Bytes by key, shared by the processes of a job: the one interface that ranks and agents meet on.
///
/// Every wait takes a Deadline and ends at the latest there, or at once after cancel(). Values are
/// bytes: zeros are fine, and an empty value exists. A store keeps no order between different keys
/// of different callers. Not a database: nothing outlives the job but a FileStore's file.

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "core/base/result.h"
#include "core/base/time.h"

namespace muster {

/// Hash (one process), file, tcp and prefix stores implement it and share one conformance suite.
/// @thread every function may be called from any thread; a thread that waits never delays another
/// @error  all: kAborted after cancel(); kPeerLost when the server is gone; kIo for files;
///         kInvalidArgument for a key or value above the limits below
class Store {
 public:
  static constexpr int64_t kMaxKeyNbytes = 8192;
  static constexpr int64_t kMaxValueNbytes = int64_t{8} << 20;
  static constexpr int64_t kMaxKeysPerRequest = 131072;

  virtual ~Store() = default;

  /// Writes a value and wakes those who wait for the key.
  virtual Result<void> set(std::string_view key, std::string_view value) = 0;

  /// The value, as soon as the key exists.
  /// @blocks until the key exists @error kTimeout names the key and the time waited
  virtual Result<std::string> get(std::string_view key, Deadline deadline) = 0;

  /// The value now, or nullopt. Does not wait.
  virtual Result<std::optional<std::string>> try_get(std::string_view key) = 0;

  /// The values of all keys, in their order, as soon as all exist.
  /// @blocks until all keys exist @error kTimeout names the missing keys and the time waited
  virtual Result<std::vector<std::string>> get_many(const std::vector<std::string>& keys,
                                                    Deadline deadline);

  /// Adds to a counter, kept as decimal text and 0 when missing; returns the sum. Wraps at 2^63.
  /// @error kFailedPrecondition the value is not a number
  virtual Result<int64_t> add(std::string_view key, int64_t delta) = 0;

  /// Stores `desired` if the value is `expected`, or if the key is missing and `expected` is empty.
  /// Returns what is stored afterwards: `desired` exactly when this call (or an equal one) won, and
  /// "" when the key is missing still (so an empty `desired` cannot tell).
  /// @source c10d Store::compareSet, which returns `expected` for a missing key: callers there
  ///         cannot tell that nothing was stored
  virtual Result<std::string> compare_set(std::string_view key, std::string_view expected,
                                          std::string_view desired) = 0;

  /// Returns when all keys exist.
  /// @blocks until then @error kTimeout names the missing keys and the time waited
  virtual Result<void> wait(const std::vector<std::string>& keys, Deadline deadline) = 0;

  /// True when all keys exist now. Does not wait.
  virtual Result<bool> check(const std::vector<std::string>& keys) = 0;

  /// Removes a key; false if there was none.
  virtual Result<bool> remove(std::string_view key) = 0;

  /// Appends bytes to a value, which starts empty.
  virtual Result<void> append(std::string_view key, std::string_view value) = 0;

  /// How many keys exist in this store (behind a prefix: with that prefix).
  virtual Result<int64_t> num_keys() = 0;

  /// All keys, sorted.
  virtual Result<std::vector<std::string>> list_keys() = 0;

  /// Wakes all waits of this object with kAborted; every later call fails the same way. Other
  /// processes are not told. Idempotent. @thread any, also from a signal-handling thread
  virtual void cancel() = 0;

  /// Where the data lives, for messages: "tcp 127.0.0.1:29500".
  [[nodiscard]] virtual std::string describe() const = 0;
};

/// Returns when `world` callers (processes or threads) have entered under `key`. The key may be
/// used again for the next round, by the same number of callers, as long as no round failed.
/// @collective exactly `world` callers
/// @blocks until all have entered
/// @error kTimeout says how many of `world` had entered
Result<void> barrier(Store& store, std::string_view key, int64_t world, Deadline deadline);

}  // namespace muster
