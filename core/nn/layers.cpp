#include "core/nn/layers.h"

#include <cmath>

#include "core/ops/ops.h"

namespace muster {

Linear::Linear(const LinearOptions& options) : Module("Linear") {
  MUSTER_CHECK(options.in_features >= 0 && options.out_features >= 0, ErrorCode::kInvalidArgument,
               "Linear: features must not be negative; got {} -> {}", options.in_features,
               options.out_features);
  const double bound =
      options.in_features > 0 ? 1.0 / std::sqrt(static_cast<double>(options.in_features)) : 0.0;
  const InitSpec uniform = InitSpec::uniform(-bound, bound);
  register_parameter("weight", weight_, empty({options.out_features, options.in_features}),
                     options.weight_init.value_or(uniform));
  register_parameter("bias", bias_, options.bias ? empty({options.out_features}) : Tensor(),
                     options.weight_init ? InitSpec::zeros() : uniform);
}

Tensor Linear::compute(const Tensor& input) { return linear(input, weight_, bias_); }

Embedding::Embedding(int64_t num_embeddings, int64_t embedding_dim, InitSpec init)
    : Module("Embedding") {
  register_parameter("weight", weight_, empty({num_embeddings, embedding_dim}), init);
}

Tensor Embedding::compute(const Tensor& input) { return embedding(weight_, input); }

LayerNorm::LayerNorm(int64_t size, double eps, bool bias) : Module("LayerNorm"), eps_(eps) {
  register_parameter("weight", weight_, empty({size}), InitSpec::ones());
  register_parameter("bias", bias_, bias ? empty({size}) : Tensor(), InitSpec::zeros());
}

Tensor LayerNorm::compute(const Tensor& input) {
  return layer_norm(input, weight_.sizes(), weight_, bias_, eps_);
}

RmsNorm::RmsNorm(int64_t size, double eps) : Module("RmsNorm"), eps_(eps) {
  register_parameter("weight", weight_, empty({size}), InitSpec::ones());
}

Tensor RmsNorm::compute(const Tensor& input) {
  return rms_norm(input, weight_.sizes(), weight_, eps_);
}

Dropout::Dropout(double p) : Module("Dropout"), p_(p) {
  MUSTER_CHECK(p >= 0 && p <= 1, ErrorCode::kInvalidArgument,
               "Dropout: probability has to be between 0 and 1; got {}", p);
}

Tensor Dropout::compute(const Tensor& input) { return dropout(input, p_, is_training()); }

Tensor Gelu::compute(const Tensor& input) { return gelu(input, approximate_); }
}  // namespace muster
