#include "launcher/recipe/recipe_rules.h"

#include <fmt/format.h>

namespace muster {
namespace {
void check_model(const Recipe& recipe, std::vector<BrokenRule>& broken) {
  const Recipe::Model& model = recipe.model;
  if (model.dim % model.heads != 0) {
    broken.push_back(
        {{"model.dim", "model.heads"},
         fmt::format("must be a multiple of model.heads; got dim {} and heads {}, remainder {}",
                     model.dim, model.heads, model.dim % model.heads)});
  }
  if (recipe.data.tokenizer == Recipe::Data::Tokenizer::kByte && model.vocab < 256) {
    broken.push_back(
        {{"model.vocab", "data.tokenizer"},
         fmt::format("must be at least 256 for data.tokenizer byte; got {}", model.vocab)});
  }
}

// A size that the other kind has: it would be passed over in silence.
void check_keys_of_kind(const Recipe::Model& model, std::vector<BrokenRule>& broken) {
  static const Recipe::Model kDefaults;
  const auto only = [&](const char* key, const char* kind, const char* instead, auto value,
                        auto otherwise) {
    if (value == otherwise) return;
    broken.push_back({{key, "model.kind"},
                      fmt::format("is for model.kind {} only{}; got {}", kind, instead, value)});
  };
  if (model.kind == Recipe::Model::Kind::kGpt) {
    only("model.kv_heads", "llama", "", model.kv_heads, kDefaults.kv_heads);
    only("model.mlp_dim", "llama", ", gpt has mlp_ratio", model.mlp_dim, kDefaults.mlp_dim);
    only("model.rope_theta", "llama", "", model.rope_theta, kDefaults.rope_theta);
  } else {
    only("model.mlp_ratio", "gpt", ", llama has mlp_dim", model.mlp_ratio, kDefaults.mlp_ratio);
  }
}

// f64 is for exact comparisons; bf16 anywhere in the step would undo it.
void check_dtypes(const Recipe& recipe, std::vector<BrokenRule>& broken) {
  if (recipe.model.dtype == "f32") return;
  const auto refuse = [&](const char* key, const std::string& value) {
    broken.push_back(
        {{key, "model.dtype"},
         fmt::format("must not be bf16 with model.dtype {}; got {}", recipe.model.dtype, value)});
  };
  if (recipe.train.autocast == Recipe::Train::Autocast::kBf16) refuse("train.autocast", "bf16");
  if (recipe.fsdp.param_dtype == "bf16") refuse("fsdp.param_dtype", "bf16");
  if (recipe.fsdp.reduce_dtype == "bf16") refuse("fsdp.reduce_dtype", "bf16");
}

void check_loss_chunk(const Recipe& recipe, std::vector<BrokenRule>& broken) {
  if (recipe.train.loss_chunk == 0) return;
  if (recipe.mesh.pp > 1) {
    broken.push_back({{"train.loss_chunk", "mesh.pp"},
                      fmt::format("must be 0 in a pipeline; got {} with mesh.pp {}",
                                  recipe.train.loss_chunk, recipe.mesh.pp)});
  }
  if (recipe.mesh.tp > 1 && recipe.tp.sequence_parallel) {
    broken.push_back(
        {{"train.loss_chunk", "tp.sequence_parallel"},
         fmt::format("must be 0 with tp.sequence_parallel; got {}", recipe.train.loss_chunk)});
  }
}

void check_optimizer(const Recipe& recipe, std::vector<BrokenRule>& broken) {
  const Recipe::Optimizer& optimizer = recipe.optimizer;
  if (optimizer.betas.size() != 2) {
    broken.push_back({{"optimizer.betas"},
                      fmt::format("must hold two numbers; got {}", optimizer.betas.size())});
  }
  if (optimizer.warmup_steps > recipe.train.steps) {
    broken.push_back({{"optimizer.warmup", "train.steps"},
                      fmt::format("must be at most train.steps; got {} of {} steps",
                                  optimizer.warmup_steps, recipe.train.steps)});
  }
  if (optimizer.kind == Recipe::Optimizer::Kind::kAdamW && optimizer.momentum != 0) {
    broken.push_back({{"optimizer.momentum", "optimizer.kind"},
                      fmt::format("must be 0 for optimizer.kind adamw, which has betas instead; "
                                  "got {}",
                                  optimizer.momentum)});
  }
}

void check_llama(const Recipe::Model& model, std::vector<BrokenRule>& broken) {
  if (model.kv_heads != 0 && model.heads % model.kv_heads != 0) {
    broken.push_back({{"model.kv_heads", "model.heads"},
                      fmt::format("must divide model.heads; got kv_heads {} and heads {}",
                                  model.kv_heads, model.heads)});
  }
  if (model.dim % model.heads == 0 && model.dim / model.heads % 2 != 0) {
    broken.push_back({{"model.dim", "model.heads"},
                      fmt::format("a llama's heads must have an even width, rotary embeddings turn "
                                  "pairs; got {}",
                                  model.dim / model.heads)});
  }
  if (model.dropout != 0) {
    broken.push_back(
        {{"model.dropout"}, fmt::format("must be 0 for model.kind llama; got {}", model.dropout)});
  }
}

void check_pipeline(const Recipe& recipe, std::vector<BrokenRule>& broken) {
  const Recipe::Pipeline& pipeline = recipe.pipeline;
  const bool interleaved = pipeline.schedule == Recipe::Pipeline::Schedule::kInterleaved1F1B;
  if (pipeline.stages_per_rank > 1 && !interleaved) {
    broken.push_back({{"pipeline.stages_per_rank", "pipeline.schedule"},
                      fmt::format("must be 1 unless pipeline.schedule is interleaved_1f1b; got {}",
                                  pipeline.stages_per_rank)});
  }
  const int64_t stages = recipe.mesh.pp * pipeline.stages_per_rank;
  if (recipe.mesh.pp > 1 && recipe.model.layers < stages) {
    broken.push_back({{"mesh.pp", "model.layers", "pipeline.stages_per_rank"},
                      fmt::format("every stage needs a block; got {} layers for {} stages",
                                  recipe.model.layers, stages)});
  }
}

void check_tensor_parallel(const Recipe& recipe, std::vector<BrokenRule>& broken) {
  const int64_t tp = recipe.mesh.tp;
  if (tp == 1) return;
  const int64_t kv_heads = recipe.model.kv_heads == 0 ? recipe.model.heads : recipe.model.kv_heads;
  if (recipe.model.heads % tp != 0 || kv_heads % tp != 0) {
    broken.push_back({{"mesh.tp", "model.heads", "model.kv_heads"},
                      fmt::format("must divide the heads; got tp {}, heads {}, kv_heads {}", tp,
                                  recipe.model.heads, kv_heads)});
  }
  if (recipe.tp.sequence_parallel && recipe.mesh.pp > 1 && recipe.model.sequence % tp != 0) {
    broken.push_back({{"mesh.tp", "model.sequence", "tp.sequence_parallel", "mesh.pp"},
                      fmt::format("must divide model.sequence for tp.sequence_parallel in a "
                                  "pipeline; got tp {} and sequence {}",
                                  tp, recipe.model.sequence)});
  }
}

void check_mesh(const Recipe& recipe, std::vector<BrokenRule>& broken) {
  if (recipe.mesh.fsdp == 0) {
    broken.push_back({{"mesh.fsdp"}, "must be -1 (all ranks) or at least 1; got 0"});
  }
}

// A pipeline runs the same microbatches on all of its ranks, so they must come out even.
void check_microbatches(const Recipe& recipe, int64_t data_ranks, std::vector<BrokenRule>& broken) {
  if (recipe.mesh.pp == 1 || data_ranks == 0) return;
  const int64_t even = data_ranks * recipe.train.microbatch;
  if (recipe.train.global_batch % even != 0) {
    broken.push_back(
        {{"train.global_batch", "train.microbatch", "mesh.pp"},
         fmt::format("with mesh.pp the global batch must be a multiple of microbatch x "
                     "data-parallel ranks; got {} and {} x {}",
                     recipe.train.global_batch, recipe.train.microbatch, data_ranks)});
    return;
  }
  const int64_t microbatches = recipe.train.global_batch / even;
  const int64_t rounds = std::max<int64_t>(1, microbatches / recipe.mesh.pp);
  if (recipe.pipeline.stages_per_rank > 1 && microbatches % rounds != 0) {
    broken.push_back(
        {{"train.global_batch", "train.microbatch", "mesh.pp", "pipeline.schedule"},
         fmt::format("interleaved_1f1b needs a multiple of (microbatches / mesh.pp, rounded down) "
                     "microbatches; got {} and {}",
                     microbatches, rounds)});
  }
}
}  // namespace

std::vector<BrokenRule> broken_rules(const Recipe& recipe) {
  std::vector<BrokenRule> broken;
  if (recipe.run.dir.empty()) {
    broken.push_back({{"run.dir"}, "must name a folder; got \"\""});
  }
  check_model(recipe, broken);
  check_keys_of_kind(recipe.model, broken);
  if (recipe.model.kind == Recipe::Model::Kind::kLlama) check_llama(recipe.model, broken);
  check_pipeline(recipe, broken);
  check_tensor_parallel(recipe, broken);
  if (recipe.data.kind == Recipe::Data::Kind::kText && recipe.data.files.empty()) {
    broken.push_back({{"data.files"}, "must name at least one file; got none"});
  }
  check_mesh(recipe, broken);
  check_dtypes(recipe, broken);
  check_loss_chunk(recipe, broken);
  check_optimizer(recipe, broken);
  return broken;
}

std::vector<BrokenRule> broken_rules(const Recipe& recipe, int world_size) {
  std::vector<BrokenRule> broken;
  const Recipe::Mesh& mesh = recipe.mesh;
  const int64_t others = mesh.pp * mesh.dp_replicate * mesh.tp;
  const std::string axes = fmt::format("axes pp={}, dp_replicate={}, fsdp={}, tp={}", mesh.pp,
                                       mesh.dp_replicate, mesh.fsdp, mesh.tp);
  if (mesh.fsdp > 0 && mesh.fsdp * others != world_size) {
    broken.push_back({{"mesh.fsdp", "mesh.pp", "mesh.dp_replicate", "mesh.tp"},
                      fmt::format("the product of the axes must be the number of ranks; got {} "
                                  "from {}, world size is {}",
                                  mesh.fsdp * others, axes, world_size)});
  }
  if (mesh.fsdp < 0 && world_size % others != 0) {
    broken.push_back({{"mesh.pp", "mesh.dp_replicate", "mesh.tp"},
                      fmt::format("the axes must divide the number of ranks; got {}, world size "
                                  "is {}",
                                  axes, world_size)});
  }
  const int64_t data_ranks = world_size / (mesh.pp * mesh.tp);
  if (data_ranks > 0 && recipe.train.global_batch < data_ranks) {
    broken.push_back({{"train.global_batch"},
                      fmt::format("must hold a sequence for every rank that reads data; got {} for "
                                  "{} of them, world size is {}",
                                  recipe.train.global_batch, data_ranks, world_size)});
  }
  check_microbatches(recipe, data_ranks, broken);
  return broken;
}
}  // namespace muster
