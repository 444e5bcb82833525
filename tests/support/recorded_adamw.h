#pragma once
/// The optimizer of the recorded training runs.

#include <memory>
#include <nlohmann/json.hpp>
#include <utility>
#include <vector>

#include "core/nn/optim/optimizer.h"

namespace muster::testing {

/// `options` is the entry "options" of a golden file's "train".
inline std::unique_ptr<AdamW> recorded_adamw(std::vector<NamedTensor> decayed,
                                             std::vector<NamedTensor> plain,
                                             const nlohmann::json& options) {
  const AdamWOptions decays{.lr = options["lr"],
                            .beta1 = options["betas"][0],
                            .beta2 = options["betas"][1],
                            .eps = options["eps"],
                            .weight_decay = options["weight_decay"]};
  AdamWOptions stays = decays;
  stays.weight_decay = 0;
  return std::make_unique<AdamW>(std::vector<ParameterGroup<AdamWOptions>>{
      {std::move(decayed), decays}, {std::move(plain), stays}});
}

}  // namespace muster::testing
