#pragma once
/// Texts and limits that all stores share, so that they fail with the same words.

#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "core/base/result.h"
#include "core/base/time.h"

namespace muster::internal {

/// The key in double quotes, shortened and with unprintable bytes as \xNN.
std::string quote_key(std::string_view key);

/// `"a", "b" and 3 more`.
std::string quote_keys(std::span<const std::string> keys);

/// @error kInvalidArgument the key is longer than Store::kMaxKeyNbytes
Result<void> check_key(std::string_view operation, std::string_view key);
/// @error kInvalidArgument a key is too long, or there are more than Store::kMaxKeysPerRequest
Result<void> check_keys(std::string_view operation, std::span<const std::string> keys);
/// @error kInvalidArgument key or value is above its limit
Result<void> check_entry(std::string_view operation, std::string_view key, std::string_view value);

/// @error kInvalidArgument APPEND would make the value of `key` this long
Result<void> check_grown_value(std::string_view key, int64_t grown_nbytes);

/// kFailedPrecondition: ADD on a value that is no number.
Error not_a_counter(std::string_view key, std::string_view value);

/// kTimeout: the keys that are missing, where, and how long was waited.
Error missing_keys(std::string_view operation, std::string_view store,
                   std::span<const std::string> missing, Duration waited);

/// kAborted: the store was cancelled.
Error cancelled(std::string_view operation, std::string_view store);

}  // namespace muster::internal
