#include "dist/store/internal/messages.h"

#include <fmt/format.h>

#include "core/base/text.h"
#include "core/base/units.h"
#include "dist/store/store.h"

namespace muster::internal {
namespace {
constexpr size_t kShownKeyNbytes = 120;
constexpr size_t kShownKeys = 8;
}  // namespace

std::string quote_key(std::string_view key) {
  std::string text = "\"";
  for (const char c : key.substr(0, kShownKeyNbytes)) {
    const auto byte = static_cast<unsigned char>(c);
    if (byte < 0x20 || byte == 0x7f || c == '"') {
      text += fmt::format("\\x{:02x}", byte);
    } else {
      text += c;
    }
  }
  if (key.size() > kShownKeyNbytes) text += fmt::format("... ({} bytes)", key.size());
  return text + "\"";
}

std::string quote_keys(std::span<const std::string> keys) {
  std::vector<std::string> shown;
  for (const std::string& key : keys.first(std::min(keys.size(), kShownKeys))) {
    shown.push_back(quote_key(key));
  }
  std::string text = join(shown);
  if (keys.size() > kShownKeys) text += fmt::format(" and {} more", keys.size() - kShownKeys);
  return text;
}

Result<void> check_key(std::string_view operation, std::string_view key) {
  if (std::ssize(key) > Store::kMaxKeyNbytes) {
    return make_error(ErrorCode::kInvalidArgument, "{}: a key has at most {} bytes; got {}: {}",
                      operation, Store::kMaxKeyNbytes, key.size(), quote_key(key));
  }
  return {};
}

Result<void> check_keys(std::string_view operation, std::span<const std::string> keys) {
  if (std::ssize(keys) > Store::kMaxKeysPerRequest) {
    return make_error(ErrorCode::kInvalidArgument, "{}: at most {} keys at once; got {}", operation,
                      Store::kMaxKeysPerRequest, keys.size());
  }
  for (const std::string& key : keys) MUSTER_TRY(check_key(operation, key));
  return {};
}

Result<void> check_entry(std::string_view operation, std::string_view key, std::string_view value) {
  MUSTER_TRY(check_key(operation, key));
  if (std::ssize(value) > Store::kMaxValueNbytes) {
    return make_error(ErrorCode::kInvalidArgument, "{}: a value has at most {}; got {} for key {}",
                      operation, format_bytes({Store::kMaxValueNbytes}),
                      format_bytes({std::ssize(value)}), quote_key(key));
  }
  return {};
}

Result<void> check_grown_value(std::string_view key, int64_t grown_nbytes) {
  if (grown_nbytes > Store::kMaxValueNbytes) {
    return make_error(
        ErrorCode::kInvalidArgument, "append: a value has at most {}; key {} would have {}",
        format_bytes({Store::kMaxValueNbytes}), quote_key(key), format_bytes({grown_nbytes}));
  }
  return {};
}

Error not_a_counter(std::string_view key, std::string_view value) {
  return make_error(ErrorCode::kFailedPrecondition,
                    "add: the value of key {} must be a number; got {}", quote_key(key),
                    quote_key(value));
}

Error missing_keys(std::string_view operation, std::string_view store,
                   std::span<const std::string> missing, Duration waited) {
  return make_error(ErrorCode::kTimeout,
                    "{}: all keys must exist before the deadline; waited {} for {} in {}",
                    operation, format_duration(waited), quote_keys(missing), store);
}

Error cancelled(std::string_view operation, std::string_view store) {
  return make_error(ErrorCode::kAborted, "{}: the store must not be cancelled; {} was", operation,
                    store);
}

}  // namespace muster::internal
