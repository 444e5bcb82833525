#pragma once
/// A small training state in any layout, and ranks as threads to save and load it.

#include <cstring>
#include <functional>
#include <memory>
#include <numeric>
#include <thread>

#include "checkpoint/io/checkpointer.h"
#include "checkpoint/io/digest.h"
#include "checkpoint/plan/shard_map.h"
#include "core/base/hash.h"
#include "dist/store/hash_store.h"
#include "tests/checkpoint/random_layout.h"

namespace muster::checkpoint {

/// A tensor of the model and how it is laid out over the ranks.
struct ModelTensor {
  enum class Layout { kRows, kColumns, kReplicated };
  std::string name;
  DType dtype = DType::kF32;
  Dims sizes;
  Layout layout = Layout::kRows;
};

/// All dtypes, uneven and empty shards, a scalar, a tensor without elements.
inline std::vector<ModelTensor> small_model() {
  using enum ModelTensor::Layout;
  return {{"embed.weight", DType::kBF16, {37, 8}, kRows},
          {"head.bias", DType::kF32, {5}, kRows},
          {"layer.0.weight", DType::kF32, {16, 24}, kRows},
          {"layer.1.weight", DType::kF32, {12, 10}, kColumns},
          {"mask", DType::kBool, {7}, kReplicated},
          {"nothing", DType::kI8, {0, 3}, kRows},
          {"norm.scale", DType::kF16, {24}, kReplicated},
          {"optimizer.exp_avg", DType::kF64, {9, 3}, kRows},
          {"optimizer.step", DType::kI64, {}, kReplicated},
          {"table", DType::kU8, {2, 3, 4}, kRows}};
}

/// The value of each byte follows from seed, name and position: no two steps or tensors are equal.
inline std::vector<std::byte> tensor_bytes(const ModelTensor& tensor, int64_t seed) {
  std::vector<std::byte> bytes(
      static_cast<size_t>(numel(tensor.sizes) * item_nbytes(tensor.dtype)));
  Rng rng(hash_text(tensor.name, static_cast<uint64_t>(seed)));
  for (std::byte& byte : bytes)
    byte = static_cast<std::byte>(tensor.dtype == DType::kBool ? rng() % 2 : rng() % 256);
  return bytes;
}

inline std::vector<std::byte> cut_box(const std::vector<std::byte>& full, const Dims& sizes,
                                      const Box& box, int64_t item) {
  std::vector<std::byte> part(static_cast<size_t>(numel(box.sizes) * item));
  if (part.empty()) return part;
  for_each_run(box, box, full_box(sizes), [&](int64_t to, int64_t from, int64_t n) {
    std::memcpy(part.data() + to * item, full.data() + from * item, static_cast<size_t>(n * item));
  });
  return part;
}

inline ShardMap shard_map(const ModelTensor& tensor, int world_size) {
  switch (tensor.layout) {
    case ModelTensor::Layout::kRows:
      return ShardMap::chunk(tensor.sizes, world_size, 0);
    case ModelTensor::Layout::kColumns:
      return ShardMap::chunk(tensor.sizes, world_size, 1);
    default:
      return ShardMap::replicate(tensor.sizes, world_size);
  }
}

/// What one rank holds of the model, with bytes of its own.
class RankState {
 public:
  RankState(const std::vector<ModelTensor>& model, int64_t seed, int global_rank, int world_size)
      : model_(model) {
    for (const ModelTensor& tensor : model_) {
      const ShardMap map = shard_map(tensor, world_size);
      boxes_.push_back(map.boxes_of(global_rank).at(0));
      holders_.push_back(tensor.layout == ModelTensor::Layout::kReplicated
                             ? map.holders_of(boxes_.back())
                             : std::vector<int>());
      bytes_.push_back(cut_box(tensor_bytes(tensor, seed), tensor.sizes, boxes_.back(),
                               item_nbytes(tensor.dtype)));
    }
  }

  [[nodiscard]] std::vector<TensorPiece> pieces() const {
    std::vector<TensorPiece> pieces;
    for (size_t i = 0; i < model_.size(); ++i) {
      pieces.push_back(
          {model_[i].name, model_[i].dtype, model_[i].sizes, boxes_[i], bytes_[i], holders_[i]});
    }
    return pieces;
  }
  std::vector<TensorSlot> slots() {
    std::vector<TensorSlot> slots;
    for (size_t i = 0; i < model_.size(); ++i)
      slots.push_back({model_[i].name, model_[i].dtype, model_[i].sizes, boxes_[i], bytes_[i]});
    return slots;
  }
  bool operator==(const RankState& other) const { return bytes_ == other.bytes_; }

 private:
  std::vector<ModelTensor> model_;
  std::vector<Box> boxes_;
  std::vector<std::vector<int>> holders_;
  std::vector<std::vector<std::byte>> bytes_;
};

/// The total digest that a checkpoint of the model must have in any layout.
inline uint64_t model_digest(const std::vector<ModelTensor>& model, int64_t seed) {
  std::map<std::string, uint64_t> digests;
  for (const ModelTensor& tensor : model) {
    const std::vector<std::byte> bytes = tensor_bytes(tensor, seed);
    digests[tensor.name] =
        finish_digest(digest_box(tensor.dtype, tensor.sizes, full_box(tensor.sizes), bytes),
                      tensor.dtype, tensor.sizes);
  }
  TotalDigest total;
  for (const auto& [name, digest] : digests) total.add(name, digest);
  return total.value();
}

/// Runs `body(global_rank)` in one thread per rank and joins them.
inline void run_ranks(int world_size, const std::function<void(int)>& body) {
  std::vector<std::jthread> threads;
  for (int global_rank = 0; global_rank < world_size; ++global_rank)
    threads.emplace_back([&body, global_rank] { body(global_rank); });
}

/// Options for tests: small chunks, short waits.
inline CheckpointerOptions test_options(FileSystem& fs, const std::string& directory,
                                        Store* store = nullptr, int global_rank = 0,
                                        int world_size = 1) {
  CheckpointerOptions options;
  options.directory = directory;
  options.store = store;
  options.global_rank = global_rank;
  options.world_size = world_size;
  options.timeout = std::chrono::seconds(20);
  options.chunk_nbytes = 256;
  options.file_system = &fs;
  return options;
}

/// A request that saves `state` at `step`; the state must outlive it.
inline SaveRequest test_request(const RankState& state, int64_t step, int global_rank = 0) {
  SaveRequest request;
  request.step = step;
  request.tensors = state.pieces();
  request.aliases = {{"lm_head.weight", "embed.weight"}};
  request.rank_state_json = "{\"cursor\": " + std::to_string(global_rank) + "}";
  request.train_state_json = "{\"lr\": 0.1, \"step\": " + std::to_string(step) + "}";
  request.recipe_text = "recipe: 1\n";
  request.code_revision = "r1";
  return request;
}

/// Saves the model with `seed` = `step` on all ranks; each result by rank.
inline std::vector<Result<SaveReport>> save_model(FileSystem& fs, const std::string& directory,
                                                  int64_t step, int world_size, int keep = 2) {
  HashStore store;
  std::vector<Result<SaveReport>> results(static_cast<size_t>(world_size), SaveReport{});
  run_ranks(world_size, [&](int global_rank) {
    CheckpointerOptions options = test_options(fs, directory, &store, global_rank, world_size);
    options.keep = keep;
    auto checkpointer = Checkpointer::open(options);
    const RankState state(small_model(), step, global_rank, world_size);
    results[static_cast<size_t>(global_rank)] =
        checkpointer.ok() ? (*checkpointer)->save(test_request(state, step, global_rank))
                          : Result<SaveReport>(checkpointer.error());
  });
  return results;
}

/// Loads the newest checkpoint on all ranks and compares every byte with the model of its step.
inline std::vector<Result<std::optional<LoadedState>>> load_model(FileSystem& fs,
                                                                  const std::string& directory,
                                                                  int world_size,
                                                                  bool* is_equal = nullptr) {
  HashStore store;
  std::vector<Result<std::optional<LoadedState>>> results(static_cast<size_t>(world_size),
                                                          std::optional<LoadedState>());
  std::vector<char> equal(static_cast<size_t>(world_size), 1);
  run_ranks(world_size, [&](int global_rank) {
    const size_t at = static_cast<size_t>(global_rank);
    auto checkpointer =
        Checkpointer::open(test_options(fs, directory, &store, global_rank, world_size)).value();
    RankState state(small_model(), -1, global_rank, world_size);
    const std::vector<TensorSlot> slots = state.slots();
    results[at] = checkpointer->load_latest(
        {.slots = slots, .aliases = {{"lm_head.weight", "embed.weight"}}, .step = {}});
    if (!results[at].ok() || !results[at]->has_value()) return;
    equal[at] = state == RankState(small_model(), (*results[at])->step, global_rank, world_size);
  });
  if (is_equal != nullptr) *is_equal = std::accumulate(equal.begin(), equal.end(), 0) == world_size;
  return results;
}

}  // namespace muster::checkpoint
