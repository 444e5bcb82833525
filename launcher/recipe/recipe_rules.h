#pragma once
/// What must hold between several keys of a recipe. Pure: from values to a list of complaints.
///
/// Types and limits of single keys are the table's business (recipe_keys.h).

#include <string>
#include <vector>

#include "launcher/recipe/recipe.h"

namespace muster {

/// One broken rule: `keys` take part in it, the one to be blamed first; `text` says what must hold.
struct BrokenRule {
  std::vector<std::string> keys;
  std::string text;
};

/// The rules that hold for any number of ranks.
std::vector<BrokenRule> broken_rules(const Recipe& recipe);

/// The rules that involve the number of ranks.
std::vector<BrokenRule> broken_rules(const Recipe& recipe, int world_size);

}  // namespace muster
