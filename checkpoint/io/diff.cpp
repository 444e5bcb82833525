// diff_checkpoints: two checkpoints of any layouts, slab by slab.
#include <fmt/format.h>

#include <cmath>
#include <cstring>
#include <nlohmann/json.hpp>

#include "checkpoint/io/inspect.h"

namespace muster::checkpoint {
namespace {
using nlohmann::json;

constexpr int64_t kSlabNbytes = int64_t{4} << 20;

template <typename T>
double as_double(T value) {
  if constexpr (std::is_same_v<T, Half> || std::is_same_v<T, BFloat16>)
    return static_cast<double>(static_cast<float>(value));
  else
    return static_cast<double>(value);
}

// Folds the elements of one slab into `difference`. Equal bits are equal, also for nan.
template <typename T>
void compare_slab(const std::byte* a, const std::byte* b, const Box& slab,
                  TensorDifference& difference) {
  const int64_t count = numel(slab.sizes);
  for (int64_t i = 0; i < count; ++i) {
    const int64_t at = i * static_cast<int64_t>(sizeof(T));
    if (std::memcmp(a + at, b + at, sizeof(T)) == 0) continue;
    if (difference.num_different++ == 0) {
      difference.first_index = slab.offsets;
      int64_t rest = i;
      for (size_t d = slab.sizes.size(); d-- > 0;) {
        difference.first_index[d] += rest % slab.sizes[d];
        rest /= slab.sizes[d];
      }
    }
    T x;
    T y;
    std::memcpy(&x, a + at, sizeof(T));
    std::memcpy(&y, b + at, sizeof(T));
    const double distance = std::abs(as_double(x) - as_double(y));
    // A nan is the largest, and stays.
    if (!std::isnan(difference.max_abs) && !(distance <= difference.max_abs))
      difference.max_abs = distance;
  }
}

Result<std::optional<TensorDifference>> compare_values(const Checkpoint& a, const Checkpoint& b,
                                                       const StoredTensor& tensor) {
  TensorDifference difference{tensor.name, "values", "", 0, 0, {}};
  const int64_t item = item_nbytes(tensor.dtype);
  std::vector<std::byte> bytes_a;
  std::vector<std::byte> bytes_b;
  for (const Box& slab : slabs_of(tensor.global_sizes, kSlabNbytes / item)) {
    const size_t nbytes = static_cast<size_t>(numel(slab.sizes) * item);
    bytes_a.resize(nbytes);
    bytes_b.resize(nbytes);
    TensorSlot slot{tensor.name, tensor.dtype, tensor.global_sizes, slab, bytes_a};
    MUSTER_TRY(a.read_slots(std::span(&slot, 1)));
    slot.destination = bytes_b;
    MUSTER_TRY(b.read_slots(std::span(&slot, 1)));
    if (bytes_a == bytes_b) continue;
    visit_dtype(tensor.dtype, [&](auto zero) {
      // Stored booleans may hold any byte.
      using T = std::conditional_t<std::is_same_v<decltype(zero), bool>, uint8_t, decltype(zero)>;
      compare_slab<T>(bytes_a.data(), bytes_b.data(), slab, difference);
    });
  }
  if (difference.num_different == 0) return std::optional<TensorDifference>();
  difference.detail = fmt::format("{} of {} elements differ; max abs {:g}; first at {}",
                                  difference.num_different, numel(tensor.global_sizes),
                                  difference.max_abs, to_string(difference.first_index));
  return std::optional<TensorDifference>(std::move(difference));
}

Result<std::optional<TensorDifference>> compare_tensor(const Checkpoint& a, const Checkpoint& b,
                                                       const StoredTensor& in_a,
                                                       const StoredTensor& in_b) {
  const auto found = [&](const char* what, std::string detail) {
    return std::optional<TensorDifference>(
        TensorDifference{in_a.name, what, std::move(detail), 0, 0, {}});
  };
  if (in_a.dtype != in_b.dtype)
    return found("dtype", fmt::format("{} in a, {} in b", in_a.dtype, in_b.dtype));
  if (in_a.global_sizes != in_b.global_sizes) {
    return found("shape", fmt::format("{} in a, {} in b", to_string(in_a.global_sizes),
                                      to_string(in_b.global_sizes)));
  }
  // The bytes are read even where the digests are equal: this tool does not trust, it compares.
  return compare_values(a, b, in_a);
}

// Leaves of the JSON values that differ, with their paths.
void compare_json(const std::string& path, const json& a, const json& b,
                  std::vector<StateDifference>& differences) {
  if (a == b) return;
  if (a.is_object() && b.is_object()) {
    for (const auto& [key, value] : a.items()) {
      if (b.contains(key))
        compare_json(path + "/" + key, value, b.at(key), differences);
      else
        differences.push_back({path + "/" + key, value.dump(), ""});
    }
    for (const auto& [key, value] : b.items())
      if (!a.contains(key)) differences.push_back({path + "/" + key, "", value.dump()});
    return;
  }
  if (a.is_array() && b.is_array() && a.size() == b.size()) {
    for (size_t i = 0; i < a.size(); ++i)
      compare_json(fmt::format("{}/{}", path, i), a[i], b[i], differences);
    return;
  }
  differences.push_back({path, a.dump(), b.dump()});
}

json ranks_json(const LoadedState& state) {
  json ranks = json::object();
  for (size_t i = 0; i < state.rank_states_json.size(); ++i)
    ranks[std::to_string(i)] = json::parse(state.rank_states_json[i]);
  return ranks;
}
}  // namespace

Result<DiffReport> diff_checkpoints(const Checkpoint& a, const Checkpoint& b) {
  DiffReport report;
  for (const StoredTensor& in_a : a.manifest().tensors) {
    const StoredTensor* in_b = b.manifest().find(in_a.name);
    if (in_b == nullptr) {
      report.tensors.push_back({in_a.name, "only in a", "only in a", 0, 0, {}});
      continue;
    }
    std::optional<TensorDifference> difference = MUSTER_TRY(compare_tensor(a, b, in_a, *in_b));
    if (difference) report.tensors.push_back(std::move(*difference));
  }
  for (const StoredTensor& in_b : b.manifest().tensors) {
    if (a.manifest().find(in_b.name) == nullptr)
      report.tensors.push_back({in_b.name, "only in b", "only in b", 0, 0, {}});
  }
  const LoadedState state_a = MUSTER_TRY(a.read_state());
  const LoadedState state_b = MUSTER_TRY(b.read_state());
  compare_json("step", state_a.step, state_b.step, report.state);
  compare_json("aliases", state_a.aliases, state_b.aliases, report.state);
  compare_json("train", json::parse(state_a.train_state_json),
               json::parse(state_b.train_state_json), report.state);
  compare_json("rank", ranks_json(state_a), ranks_json(state_b), report.state);
  return report;
}
}  // namespace muster::checkpoint
