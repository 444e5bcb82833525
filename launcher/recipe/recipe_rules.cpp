#include "launcher/recipe/recipe_rules.h"

#include <fmt/format.h>

#include <array>
#include <utility>

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

void check_mesh(const Recipe& recipe, std::vector<BrokenRule>& broken) {
  const std::array<std::pair<const char*, int64_t>, 3> later = {
      {{"mesh.pp", recipe.mesh.pp},
       {"mesh.dp_replicate", recipe.mesh.dp_replicate},
       {"mesh.tp", recipe.mesh.tp}}};
  for (const auto& [key, value] : later) {
    if (value != 1) {
      broken.push_back({{key},
                        fmt::format("must be 1, other values have no implementation yet; "
                                    "got {}",
                                    value)});
    }
  }
  if (recipe.mesh.fsdp == 0) {
    broken.push_back({{"mesh.fsdp"}, "must be -1 (all ranks) or at least 1; got 0"});
  }
}
}  // namespace

std::vector<BrokenRule> broken_rules(const Recipe& recipe) {
  std::vector<BrokenRule> broken;
  if (recipe.run.dir.empty()) {
    broken.push_back({{"run.dir"}, "must name a folder; got \"\""});
  }
  check_model(recipe, broken);
  if (recipe.data.kind == Recipe::Data::Kind::kText && recipe.data.files.empty()) {
    broken.push_back({{"data.files"}, "must name at least one file; got none"});
  }
  check_mesh(recipe, broken);
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
  if (recipe.train.global_batch < world_size) {
    broken.push_back({{"train.global_batch"},
                      fmt::format("must hold a sequence for every rank; got {}, world size is {}",
                                  recipe.train.global_batch, world_size)});
  }
  return broken;
}
}  // namespace muster
