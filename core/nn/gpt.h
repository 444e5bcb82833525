#pragma once
/// Gpt: the GPT-2 family of language models.
///
/// Parameter names are those of the published GPT-2 files (wte.weight, h.0.attn.c_attn.weight,
/// ln_f.bias, ..), but weights of projections are [out, in], the transpose of what those files
/// hold. Blocks are the units that sharding wraps: "h.0", "h.1", ...

#include "core/nn/causal_lm.h"
#include "core/nn/layers.h"

namespace muster {

struct GptConfig {
  int64_t vocab_size = 50257;
  int64_t max_positions = 1024;
  int64_t dim = 768;
  int64_t layers = 12;
  int64_t heads = 12;
  int64_t mlp_ratio = 4;  ///< width of the MLP in multiples of dim
  int64_t mlp_dim = 0;    ///< width of the MLP; 0: mlp_ratio * dim
  double dropout = 0.0;   ///< of embeddings, attention weights and residual branches
  double layer_norm_eps = 1e-5;
  bool tied_head = true;  ///< logits use wte.weight; else lm_head.weight
  bool bias = true;
  double init_std = 0.02;  ///< residual projections: divided by sqrt(2 * layers)

  [[nodiscard]] int64_t mlp_width() const noexcept {
    return mlp_dim > 0 ? mlp_dim : mlp_ratio * dim;
  }
};

/// Attention over earlier positions. @shape [B, T, dim] -> [B, T, dim]
class CausalSelfAttention final : public Module {
 public:
  explicit CausalSelfAttention(const GptConfig& config);
  [[nodiscard]] KeyValueCache& cache() noexcept { return cache_; }
  /// Its projections give this share of all heads: dropout then draws as all heads would.
  void set_head_share(int64_t share, int64_t shares) noexcept {
    head_share_ = share;
    head_shares_ = shares;
  }

 protected:
  Tensor compute(const Tensor& input) override;

 private:
  int64_t head_dim_;
  double dropout_;
  Linear& c_attn_;
  Linear& c_proj_;
  Dropout& resid_dropout_;
  KeyValueCache cache_;
  int64_t head_share_ = 0;
  int64_t head_shares_ = 1;
};

class GptMlp final : public Module {
 public:
  explicit GptMlp(const GptConfig& config);

 protected:
  Tensor compute(const Tensor& input) override;

 private:
  Linear& c_fc_;
  Linear& c_proj_;
  Dropout& dropout_;
};

/// x + attn(ln_1(x)), then x + mlp(ln_2(x)).
class GptBlock final : public Module {
 public:
  explicit GptBlock(const GptConfig& config);
  [[nodiscard]] CausalSelfAttention& attention() noexcept { return attn_; }

 protected:
  Tensor compute(const Tensor& input) override;

 private:
  LayerNorm& ln_1_;
  CausalSelfAttention& attn_;
  LayerNorm& ln_2_;
  GptMlp& mlp_;
};

/// Token indices to logits. @shape i64 [B, T] -> [B, T, vocab_size]
/// @error kInvalidArgument T exceeds max_positions
class Gpt final : public CausalLm {
 public:
  /// @error kInvalidArgument heads does not divide dim
  explicit Gpt(const GptConfig& config);
  [[nodiscard]] const GptConfig& config() const noexcept { return config_; }
  [[nodiscard]] std::vector<std::string> block_names() override;

 protected:
  Tensor compute(const Tensor& tokens) override;
  [[nodiscard]] std::vector<KeyValueCache*> caches() override;

 private:
  [[nodiscard]] GptBlock& block(size_t i);

  GptConfig config_;
  Embedding& wte_;
  Embedding& wpe_;
  Dropout& drop_;
  ModuleList& h_;
  LayerNorm& ln_f_;
  Linear* lm_head_ = nullptr;  // null when tied
};

}  // namespace muster
