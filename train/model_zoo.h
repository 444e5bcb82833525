#pragma once
/// The models that a recipe can name, made from its `model` section.
///
/// A model is a CausalLm with stable parameter names; how it is sharded, split or staged is decided
/// elsewhere, by those names. Adding a kind is one case here and one choice in the recipe's table.

#include <memory>

#include "core/nn/causal_lm.h"
#include "launcher/recipe/recipe.h"

namespace muster {

/// The model of a recipe, on the current device (DeviceGuard), with its values not yet set.
std::unique_ptr<CausalLm> make_model(const Recipe::Model& model);

/// Width of a llama's MLP where the recipe leaves it open: 8/3 of dim, up to a multiple of 32.
int64_t default_mlp_dim(int64_t dim);

}  // namespace muster
