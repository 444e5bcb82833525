#include "dist/store/store.h"

#include <fmt/format.h>

#include "dist/store/internal/messages.h"

namespace muster {

Result<std::vector<std::string>> Store::get_many(const std::vector<std::string>& keys,
                                                 Deadline deadline) {
  MUSTER_TRY(wait(keys, deadline));
  std::vector<std::string> values;
  values.reserve(keys.size());
  for (const std::string& key : keys) values.push_back(MUSTER_TRY(get(key, deadline)));
  return values;
}

Result<void> barrier(Store& store, std::string_view key, int64_t world, Deadline deadline) {
  if (world < 1) {
    return make_error(ErrorCode::kInvalidArgument, "barrier {}: world must be at least 1; got {}",
                      internal::quote_key(key), world);
  }
  const std::string entered_key = fmt::format("{}/entered", key);
  const auto open_key = [&](int64_t round) { return fmt::format("{}/open{}", key, round); };

  const int64_t entered = MUSTER_TRY(store.add(entered_key, 1));
  const int64_t round = (entered - 1) / world;
  if (entered % world == 0) {
    // Whoever is here has left the round before, so nobody waits for its key any more.
    if (round > 0) MUSTER_TRY(store.remove(open_key(round - 1)));
    return store.set(open_key(round), "");
  }
  Result<void> waited = store.wait({open_key(round)}, deadline);
  if (waited.ok() || waited.error().code() != ErrorCode::kTimeout) return waited;
  const Result<std::optional<std::string>> count = store.try_get(entered_key);
  const std::string seen = count.ok() ? count.value().value_or("0") : "an unknown number";
  return std::move(waited.error().add_context(fmt::format(
      "barrier {}, round {}: {} callers must enter in total; {} did (failed rounds count; use "
      "another key after a failure)",
      internal::quote_key(key), round, (round + 1) * world, seen)));
}

}  // namespace muster
