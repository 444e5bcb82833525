#include "core/nn/gpt.h"

#include <cmath>

#include "core/ops/ops.h"

namespace muster {
namespace {
LinearOptions projection(const GptConfig& config, int64_t in, int64_t out) {
  return {.in_features = in,
          .out_features = out,
          .bias = config.bias,
          .weight_init = InitSpec::normal(config.init_std)};
}

// Two branches a block add up along the residual stream.
LinearOptions residual_projection(const GptConfig& config, int64_t in, int64_t out) {
  LinearOptions options = projection(config, in, out);
  options.weight_init = InitSpec::normal(
      config.init_std / std::sqrt(2.0 * static_cast<double>(std::max<int64_t>(config.layers, 1))));
  return options;
}
}  // namespace

CausalSelfAttention::CausalSelfAttention(const GptConfig& config)
    : Module("CausalSelfAttention"),
      head_dim_(config.dim / std::max<int64_t>(config.heads, 1)),
      dropout_(config.dropout),
      c_attn_(add_module<Linear>("c_attn", projection(config, config.dim, 3 * config.dim))),
      c_proj_(add_module<Linear>("c_proj", residual_projection(config, config.dim, config.dim))),
      resid_dropout_(add_module<Dropout>("resid_dropout", config.dropout)) {}

Tensor CausalSelfAttention::compute(const Tensor& input) {
  // Sizes come from the projection: under a plan it gives other positions and fewer heads.
  const Tensor projected = c_attn_(input);
  const int64_t batch = projected.size(0), length = projected.size(1);
  const int64_t width = projected.size(2) / 3;
  // [B, T, 3, H, D]: queries, keys and values are strided views, read in place.
  const Tensor packed = view(projected, {batch, length, 3, width / head_dim_, head_dim_});
  const std::vector<Tensor> parts = unbind(packed, 2);
  Tensor keys = parts[1], values = parts[2];
  SdpaOptions options;
  options.causal = cache_.length() > 0 ? CausalAlignment::kLowerRight : CausalAlignment::kUpperLeft;
  options.dropout_p = is_training() ? dropout_ : 0.0;
  options.head_share = head_share_;
  options.head_shares = head_shares_;
  if (cache_.is_open()) std::tie(keys, values) = cache_.append(keys, values);
  const Tensor heads = scaled_dot_product_attention(
      transpose(parts[0], 1, 2), transpose(keys, 1, 2), transpose(values, 1, 2), options);
  return resid_dropout_(c_proj_(reshape(transpose(heads, 1, 2), {batch, length, width})));
}

GptMlp::GptMlp(const GptConfig& config)
    : Module("GptMlp"),
      c_fc_(add_module<Linear>("c_fc", projection(config, config.dim, config.mlp_width()))),
      c_proj_(add_module<Linear>("c_proj",
                                 residual_projection(config, config.mlp_width(), config.dim))),
      dropout_(add_module<Dropout>("dropout", config.dropout)) {}

Tensor GptMlp::compute(const Tensor& input) {
  return dropout_(c_proj_(gelu(c_fc_(input), "tanh")));
}

GptBlock::GptBlock(const GptConfig& config)
    : Module("GptBlock"),
      ln_1_(add_module<LayerNorm>("ln_1", config.dim, config.layer_norm_eps, config.bias)),
      attn_(add_module<CausalSelfAttention>("attn", config)),
      ln_2_(add_module<LayerNorm>("ln_2", config.dim, config.layer_norm_eps, config.bias)),
      mlp_(add_module<GptMlp>("mlp", config)) {}

Tensor GptBlock::compute(const Tensor& input) {
  const Tensor x = add(input, attn_(ln_1_(input)));
  return add(x, mlp_(ln_2_(x)));
}

Gpt::Gpt(const GptConfig& config)
    : CausalLm("Gpt"),
      config_(config),
      wte_(add_module<Embedding>("wte", config.vocab_size, config.dim,
                                 InitSpec::normal(config.init_std))),
      wpe_(add_module<Embedding>("wpe", config.max_positions, config.dim,
                                 InitSpec::normal(config.init_std))),
      drop_(add_module<Dropout>("drop", config.dropout)),
      h_(add_module<ModuleList>("h")),
      ln_f_(add_module<LayerNorm>("ln_f", config.dim, config.layer_norm_eps, config.bias)) {
  MUSTER_CHECK(config.heads > 0 && config.dim % config.heads == 0, ErrorCode::kInvalidArgument,
               "Gpt: dim must be a multiple of heads; got {} and {}", config.dim, config.heads);
  for (int64_t i = 0; i < config.layers; ++i) h_.append<GptBlock>(config);
  if (!config.tied_head) {
    LinearOptions head = projection(config, config.dim, config.vocab_size);
    head.bias = false;
    lm_head_ = &add_module<Linear>("lm_head", head);
  }
}

Tensor Gpt::compute(const Tensor& tokens) {
  const int64_t first = h_.size() == 0 ? 0 : block(0).attention().cache().length();
  MUSTER_CHECK(tokens.ndim() == 2 && first + tokens.size(1) <= config_.max_positions,
               ErrorCode::kInvalidArgument,
               "Gpt: tokens must be [batch, length] of length at most {}; got {} after {} others",
               config_.max_positions, tokens, first);
  const Tensor positions = arange(first, first + tokens.size(1), 1, DType::kI64, tokens.device());
  Tensor x = drop_(add(wte_(tokens), wpe_(positions)));
  for (Module* block : h_) x = (*block)(x);
  x = ln_f_(x);
  return finish(x, [this](const Tensor& hidden) {
    return lm_head_ == nullptr ? linear(hidden, wte_.weight()) : (*lm_head_)(hidden);
  });
}

GptBlock& Gpt::block(size_t i) { return static_cast<GptBlock&>(h_[i]); }

std::vector<std::string> Gpt::block_names() {
  std::vector<std::string> names;
  for (size_t i = 0; i < h_.size(); ++i) names.push_back("h." + std::to_string(i));
  return names;
}

std::vector<KeyValueCache*> Gpt::caches() {
  std::vector<KeyValueCache*> all;
  for (size_t i = 0; i < h_.size(); ++i) all.push_back(&block(i).attention().cache());
  return all;
}
}  // namespace muster
