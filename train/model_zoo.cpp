#include "train/model_zoo.h"

#include "core/nn/gpt.h"
#include "core/nn/llama.h"

namespace muster {
namespace {
std::unique_ptr<CausalLm> make_gpt(const Recipe::Model& model) {
  GptConfig config;
  config.vocab_size = model.vocab;
  config.max_positions = model.sequence;
  config.dim = model.dim;
  config.layers = model.layers;
  config.heads = model.heads;
  config.dropout = model.dropout;
  config.mlp_ratio = model.mlp_ratio;
  config.tied_head = model.tie_embeddings;
  config.init_std = model.init_std;
  return std::make_unique<Gpt>(config);
}

std::unique_ptr<CausalLm> make_llama(const Recipe::Model& model) {
  LlamaConfig config;
  config.vocab_size = model.vocab;
  config.max_positions = model.sequence;
  config.dim = model.dim;
  config.mlp_dim = model.mlp_dim > 0 ? model.mlp_dim : default_mlp_dim(model.dim);
  config.layers = model.layers;
  config.heads = model.heads;
  config.kv_heads = model.kv_heads > 0 ? model.kv_heads : model.heads;
  config.rope.theta = model.rope_theta;
  config.tied_head = model.tie_embeddings;
  config.init_std = model.init_std;
  return std::make_unique<Llama>(config);
}
}  // namespace

int64_t default_mlp_dim(int64_t dim) {
  const int64_t width = (8 * dim + 2) / 3;
  return (width + 31) / 32 * 32;
}

std::unique_ptr<CausalLm> make_model(const Recipe::Model& model) {
  return model.kind == Recipe::Model::Kind::kLlama ? make_llama(model) : make_gpt(model);
}
}  // namespace muster
