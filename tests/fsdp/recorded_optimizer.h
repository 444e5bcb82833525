#pragma once
/// The optimizer of the recorded training runs, over what a rank holds of the parameters: matrices
/// decay, vectors do not.

#include <memory>
#include <nlohmann/json.hpp>
#include <vector>

#include "core/nn/optim/optimizer.h"
#include "fsdp/fully_shard.h"

namespace muster::testing {

/// `options` is the entry "options" of a golden file's "train".
inline std::unique_ptr<AdamW> optimizer_of(const std::vector<fsdp::NamedShard>& shards,
                                           const nlohmann::json& options) {
  AdamWOptions decayed{.lr = options["lr"],
                       .beta1 = options["betas"][0],
                       .beta2 = options["betas"][1],
                       .eps = options["eps"],
                       .weight_decay = options["weight_decay"]};
  AdamWOptions plain = decayed;
  plain.weight_decay = 0;
  std::vector<ParameterGroup<AdamWOptions>> groups = {{{}, decayed}, {{}, plain}};
  for (const fsdp::NamedShard& shard : shards) {
    groups[shard.param->sizes.size() >= 2 ? 0 : 1].parameters.push_back(
        {shard.name, shard.param->local});
  }
  return std::make_unique<AdamW>(groups);
}

}  // namespace muster::testing
