#pragma once
/// CausalLm: what the language models share: a loss, the names of their blocks, and a cache of keys
/// and values for writing text one token after the other.
///
/// While a cache is open every forward pass continues the sequences of the passes before it: it
/// takes the new tokens only and gives their logits. For evaluation; nothing is recorded in it.

#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "core/nn/module.h"
#include "core/ops/losses.h"

namespace muster {

/// Keys and values of the positions that one attention module has seen.
class KeyValueCache {
 public:
  /// Begins empty, with room for `capacity` positions.
  void open(int64_t capacity);
  void close();
  [[nodiscard]] bool is_open() const noexcept { return capacity_ > 0; }
  /// Positions held; 0 when closed.
  [[nodiscard]] int64_t length() const noexcept { return length_; }
  /// Adds new positions and returns those of all. @shape key, value [B, T, H, D]
  /// @error kOutOfRange more positions than the capacity
  std::pair<Tensor, Tensor> append(const Tensor& key, const Tensor& value);

 private:
  Tensor keys_, values_;
  int64_t capacity_ = 0;
  int64_t length_ = 0;
};

class CausalLm : public Module {
 public:
  /// Next-token loss as sum and count; the caller divides, by the global count.
  /// @shape tokens, targets i64 [B, T]; targets of -100 do not count
  LossSum loss(const Tensor& tokens, const Tensor& targets);
  /// How the loss comes from logits [N, classes] and targets [N], where logits are not whole.
  using LossFunction = std::function<LossSum(const Tensor& logits, const Tensor& targets)>;
  void replace_loss(LossFunction loss) { replaced_loss_ = std::move(loss); }

  /// loss() then makes the logits of so many positions at a time, and once more in backward, so
  /// that [B, T, vocab_size] is never in memory; 0 (the default): of all at once. Where positions
  /// are not all on this rank (sequence shards) it must stay 0.
  void set_loss_chunk(int64_t positions) noexcept { loss_chunk_ = positions; }

  /// Dotted names of the transformer blocks, in order: what sharding wraps and pipelines cut.
  [[nodiscard]] virtual std::vector<std::string> block_names() = 0;

  /// Opens an empty cache for at most `capacity` positions; an open one is emptied.
  void open_cache(int64_t capacity);
  void close_cache();

 protected:
  using Module::Module;
  /// Of every attention module, in order.
  [[nodiscard]] virtual std::vector<KeyValueCache*> caches() = 0;
  /// The last line of compute(): logits of `hidden` by `head`, or, inside loss() with a chunk, the
  /// loss. Keeps the head between the hooks of this module, which gather its weights.
  Tensor finish(const Tensor& hidden, const std::function<Tensor(const Tensor& hidden)>& head);

 private:
  [[nodiscard]] LossSum loss_of(const Tensor& logits, const Tensor& targets) const;

  int64_t loss_chunk_ = 0;
  Tensor chunk_targets_;  // of the pass under way, inside loss() with a chunk
  LossFunction replaced_loss_;
};

}  // namespace muster
