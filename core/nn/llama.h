#pragma once
/// Llama: decoder-only models with rotary positions, RMS norms, grouped keys and a gated MLP; also
/// Qwen3, which norms queries and keys.
///
/// Parameter names and layouts are those of the published files (model.layers.0.self_attn.q_proj.
/// weight, [out, in]). Blocks are the units that sharding wraps and pipelines cut: "model.layers.
/// 0", ... The number of heads that a module computes follows from its projections' outputs, so
/// projections cut by heads need nothing else changed.

#include <memory>

#include "core/nn/causal_lm.h"
#include "core/nn/layers.h"
#include "core/nn/rope_table.h"

namespace muster {

struct LlamaConfig {
  int64_t vocab_size = 32000;
  int64_t max_positions = 2048;  ///< what the model was trained for; longer input is not refused
  int64_t dim = 4096;
  int64_t mlp_dim = 11008;  ///< width between gate and down projection
  int64_t layers = 32;
  int64_t heads = 32;
  int64_t kv_heads = 32;  ///< heads / kv_heads query heads read one key head
  int64_t head_dim = 0;   ///< 0: dim / heads
  RopeConfig rope = {};
  double rms_norm_eps = 1e-6;
  bool tied_head = false;       ///< logits use embed_tokens.weight; else lm_head.weight
  bool attention_bias = false;  ///< of q, k, v and o projections
  bool mlp_bias = false;
  bool qk_norm = false;  ///< RMS norm of each head's queries and keys (Qwen3)
  double attention_dropout = 0.0;
  double init_std = 0.02;

  [[nodiscard]] int64_t head_size() const noexcept { return head_dim > 0 ? head_dim : dim / heads; }
};

/// Causal attention with rotary positions. @shape [B, T, dim] -> [B, T, dim]
class LlamaAttention final : public Module {
 public:
  LlamaAttention(const LlamaConfig& config, std::shared_ptr<RopeTable> rope);
  [[nodiscard]] KeyValueCache& cache() noexcept { return cache_; }
  /// Its projections give this share of all heads: dropout then draws as all heads would.
  void set_head_share(int64_t share, int64_t shares) noexcept {
    head_share_ = share;
    head_shares_ = shares;
  }

 protected:
  Tensor compute(const Tensor& input) override;

 private:
  // [B, T, heads of this rank, head_dim]
  [[nodiscard]] Tensor split_heads(const Tensor& projected) const;

  int64_t head_dim_;
  double dropout_;
  std::shared_ptr<RopeTable> rope_;  // one for all blocks
  Linear& q_proj_;
  Linear& k_proj_;
  Linear& v_proj_;
  Linear& o_proj_;
  RmsNorm* q_norm_ = nullptr;  // null without qk_norm
  RmsNorm* k_norm_ = nullptr;
  KeyValueCache cache_;
  int64_t head_share_ = 0;
  int64_t head_shares_ = 1;
};

/// down(silu(gate(x)) * up(x)).
class LlamaMlp final : public Module {
 public:
  explicit LlamaMlp(const LlamaConfig& config);

 protected:
  Tensor compute(const Tensor& input) override;

 private:
  Linear& gate_proj_;
  Linear& up_proj_;
  Linear& down_proj_;
};

/// x + self_attn(input_layernorm(x)), then x + mlp(post_attention_layernorm(x)).
class LlamaBlock final : public Module {
 public:
  LlamaBlock(const LlamaConfig& config, std::shared_ptr<RopeTable> rope);
  [[nodiscard]] LlamaAttention& attention() noexcept { return self_attn_; }

 protected:
  Tensor compute(const Tensor& input) override;

 private:
  LlamaAttention& self_attn_;
  LlamaMlp& mlp_;
  RmsNorm& input_layernorm_;
  RmsNorm& post_attention_layernorm_;
};

/// Token indices to normed hidden states. @shape i64 [B, T] -> [B, T, dim]
class LlamaBody final : public Module {
 public:
  explicit LlamaBody(const LlamaConfig& config);
  [[nodiscard]] Embedding& embed_tokens() noexcept { return embed_tokens_; }
  [[nodiscard]] ModuleList& layers() noexcept { return layers_; }
  [[nodiscard]] RmsNorm& norm() noexcept { return norm_; }

 protected:
  Tensor compute(const Tensor& tokens) override;

 private:
  Embedding& embed_tokens_;
  ModuleList& layers_;
  RmsNorm& norm_;
};

/// Token indices to logits. @shape i64 [B, T] -> [B, T, vocab_size]
class Llama final : public CausalLm {
 public:
  /// @error kInvalidArgument kv_heads does not divide heads, or sizes without sense
  explicit Llama(const LlamaConfig& config);
  [[nodiscard]] const LlamaConfig& config() const noexcept { return config_; }
  /// Embedding, blocks and last norm; parameters "model.*".
  [[nodiscard]] LlamaBody& body() noexcept { return model_; }
  /// Null when the head is tied to the embedding.
  [[nodiscard]] Linear* lm_head() noexcept { return lm_head_; }
  [[nodiscard]] std::vector<std::string> block_names() override;

 protected:
  Tensor compute(const Tensor& tokens) override;
  [[nodiscard]] std::vector<KeyValueCache*> caches() override;

 private:
  LlamaConfig config_;
  LlamaBody& model_;
  Linear* lm_head_ = nullptr;
};

}  // namespace muster
