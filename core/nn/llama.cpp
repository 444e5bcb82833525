#include "core/nn/llama.h"

#include <utility>

#include "core/ops/ops.h"

namespace muster {
namespace {
LinearOptions projection(const LlamaConfig& config, int64_t in, int64_t out, bool bias) {
  return {.in_features = in,
          .out_features = out,
          .bias = bias,
          .weight_init = InitSpec::normal(config.init_std)};
}

LinearOptions to_heads(const LlamaConfig& config, int64_t heads) {
  return projection(config, config.dim, heads * config.head_size(), config.attention_bias);
}

const LlamaConfig& checked(const LlamaConfig& config) {
  MUSTER_CHECK(config.heads > 0 && config.kv_heads > 0 && config.heads % config.kv_heads == 0,
               ErrorCode::kInvalidArgument,
               "Llama: heads must be a multiple of kv_heads; got {} and {}", config.heads,
               config.kv_heads);
  MUSTER_CHECK(config.head_dim > 0 || config.dim % config.heads == 0, ErrorCode::kInvalidArgument,
               "Llama: dim must be a multiple of heads unless head_dim is given; got {} and {}",
               config.dim, config.heads);
  MUSTER_CHECK(config.head_size() % 2 == 0, ErrorCode::kInvalidArgument,
               "Llama: the head dim must be even, as rotary positions turn pairs; got {}",
               config.head_size());
  return config;
}
}  // namespace

LlamaAttention::LlamaAttention(const LlamaConfig& config, std::shared_ptr<RopeTable> rope)
    : Module("LlamaAttention"),
      head_dim_(config.head_size()),
      dropout_(config.attention_dropout),
      rope_(std::move(rope)),
      q_proj_(add_module<Linear>("q_proj", to_heads(config, config.heads))),
      k_proj_(add_module<Linear>("k_proj", to_heads(config, config.kv_heads))),
      v_proj_(add_module<Linear>("v_proj", to_heads(config, config.kv_heads))),
      o_proj_(add_module<Linear>("o_proj", projection(config, config.heads * head_dim_, config.dim,
                                                      config.attention_bias))) {
  if (config.qk_norm) {
    q_norm_ = &add_module<RmsNorm>("q_norm", head_dim_, config.rms_norm_eps);
    k_norm_ = &add_module<RmsNorm>("k_norm", head_dim_, config.rms_norm_eps);
  }
}

Tensor LlamaAttention::split_heads(const Tensor& projected) const {
  MUSTER_CHECK(projected.ndim() == 3 && projected.size(2) % head_dim_ == 0,
               ErrorCode::kInvalidArgument,
               "LlamaAttention: a projection must give [B, T, whole heads of {}]; got {}",
               head_dim_, projected);
  return unflatten(projected, 2, {projected.size(2) / head_dim_, head_dim_});
}

Tensor LlamaAttention::compute(const Tensor& input) {
  Tensor q = split_heads(q_proj_(input)), k = split_heads(k_proj_(input));
  Tensor v = split_heads(v_proj_(input));
  if (q_norm_ != nullptr) q = (*q_norm_)(q), k = (*k_norm_)(k);
  const int64_t first = cache_.length();
  const auto [cos, sin] = rope_->at(first, q.size(1), q);
  q = rope(q, cos, sin), k = rope(k, cos, sin);
  if (cache_.is_open()) std::tie(k, v) = cache_.append(k, v);
  SdpaOptions options;
  options.causal = first > 0 ? CausalAlignment::kLowerRight : CausalAlignment::kUpperLeft;
  options.dropout_p = is_training() ? dropout_ : 0.0;
  options.head_share = head_share_;
  options.head_shares = head_shares_;
  options.enable_gqa = true;
  // Strided views of [B, T, H, D] throughout: nothing is copied on the way in or out.
  const Tensor heads = scaled_dot_product_attention(transpose(q, 1, 2), transpose(k, 1, 2),
                                                    transpose(v, 1, 2), options);
  return o_proj_(flatten(transpose(heads, 1, 2), 2, 3));
}

LlamaMlp::LlamaMlp(const LlamaConfig& config)
    : Module("LlamaMlp"),
      gate_proj_(add_module<Linear>(
          "gate_proj", projection(config, config.dim, config.mlp_dim, config.mlp_bias))),
      up_proj_(add_module<Linear>("up_proj",
                                  projection(config, config.dim, config.mlp_dim, config.mlp_bias))),
      down_proj_(add_module<Linear>(
          "down_proj", projection(config, config.mlp_dim, config.dim, config.mlp_bias))) {}

Tensor LlamaMlp::compute(const Tensor& input) {
  return down_proj_(swiglu(gate_proj_(input), up_proj_(input)));
}

LlamaBlock::LlamaBlock(const LlamaConfig& config, std::shared_ptr<RopeTable> rope)
    : Module("LlamaBlock"),
      self_attn_(add_module<LlamaAttention>("self_attn", config, std::move(rope))),
      mlp_(add_module<LlamaMlp>("mlp", config)),
      input_layernorm_(add_module<RmsNorm>("input_layernorm", config.dim, config.rms_norm_eps)),
      post_attention_layernorm_(
          add_module<RmsNorm>("post_attention_layernorm", config.dim, config.rms_norm_eps)) {}

Tensor LlamaBlock::compute(const Tensor& input) {
  const Tensor x = add(input, self_attn_(input_layernorm_(input)));
  return add(x, mlp_(post_attention_layernorm_(x)));
}

LlamaBody::LlamaBody(const LlamaConfig& config)
    : Module("LlamaBody"),
      embed_tokens_(add_module<Embedding>("embed_tokens", config.vocab_size, config.dim,
                                          InitSpec::normal(config.init_std))),
      layers_(add_module<ModuleList>("layers")),
      norm_(add_module<RmsNorm>("norm", config.dim, config.rms_norm_eps)) {
  const auto rope = std::make_shared<RopeTable>(config.rope, config.head_size());
  for (int64_t i = 0; i < config.layers; ++i) layers_.append<LlamaBlock>(config, rope);
}

Tensor LlamaBody::compute(const Tensor& tokens) {
  Tensor x = embed_tokens_(tokens);
  for (Module* block : layers_) x = (*block)(x);
  return norm_(x);
}

Llama::Llama(const LlamaConfig& config)
    : CausalLm("Llama"), config_(checked(config)), model_(add_module<LlamaBody>("model", config)) {
  if (!config.tied_head) {
    lm_head_ =
        &add_module<Linear>("lm_head", projection(config, config.dim, config.vocab_size, false));
  }
}

Tensor Llama::compute(const Tensor& tokens) {
  MUSTER_CHECK(tokens.ndim() == 2, ErrorCode::kInvalidArgument,
               "Llama: tokens must be [batch, length]; got {}", tokens);
  return finish(model_(tokens), [this](const Tensor& hidden) {
    return lm_head_ == nullptr ? linear(hidden, model_.embed_tokens().weight())
                               : (*lm_head_)(hidden);
  });
}

std::vector<std::string> Llama::block_names() {
  std::vector<std::string> names;
  for (size_t i = 0; i < model_.layers().size(); ++i) {
    names.push_back("model.layers." + std::to_string(i));
  }
  return names;
}

std::vector<KeyValueCache*> Llama::caches() {
  std::vector<KeyValueCache*> all;
  for (Module* block : model_.layers()) {
    all.push_back(&static_cast<LlamaBlock*>(block)->attention().cache());
  }
  return all;
}
}  // namespace muster
