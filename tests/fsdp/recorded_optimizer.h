#pragma once
/// The optimizer of the recorded training runs, over what a rank holds of the parameters: matrices
/// decay, vectors do not.

#include <memory>
#include <nlohmann/json.hpp>
#include <vector>

#include "fsdp/fully_shard.h"
#include "tests/support/recorded_adamw.h"

namespace muster::testing {

/// `options` is the entry "options" of a golden file's "train".
inline std::unique_ptr<AdamW> optimizer_of(const std::vector<fsdp::NamedShard>& shards,
                                           const nlohmann::json& options) {
  std::vector<NamedTensor> matrices, vectors;
  for (const fsdp::NamedShard& shard : shards) {
    (shard.param->sizes.size() >= 2 ? matrices : vectors)
        .push_back({shard.name, shard.param->local});
  }
  return recorded_adamw(matrices, vectors, options);
}

}  // namespace muster::testing
