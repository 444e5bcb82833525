#include "launcher/recipe/recipe.h"

#include <fmt/format.h>

#include "core/base/file_system.h"
#include "core/base/hash.h"
#include "launcher/recipe/recipe_keys.h"

namespace muster {

std::string Origin::text() const {
  switch (kind) {
    case Kind::kDefault:
      return "default";
    case Kind::kFile:
      return fmt::format("{}:{}:{}", file, line, column);
    case Kind::kCommandLine:
      return "command line";
  }
  return "default";
}

std::string Recipe::checkpoint_dir() const {
  return checkpoint.dir.empty() ? path_join(run.dir, "checkpoints") : checkpoint.dir;
}

Origin Recipe::origin_of(std::string_view key) const {
  const auto found = origins.find(std::string(key));
  return found == origins.end() ? Origin{} : found->second;
}

std::string to_yaml(const Recipe& recipe, bool with_origins) {
  std::string text = "recipe: 1\n";
  std::string_view section;
  for (const RecipeKey& key : recipe_keys()) {
    if (key.section != section) {
      section = key.section;
      text += fmt::format("{}:\n", section);
    }
    std::string line = fmt::format("  {}: {}", key.name, value_to_yaml(key, recipe));
    if (with_origins) line = fmt::format("{:<44}  # {}", line, recipe.origin_of(key.path()).text());
    text += line + "\n";
  }
  return text;
}

uint64_t recipe_hash(const Recipe& recipe) {
  std::string text;
  for (const RecipeKey& key : recipe_keys()) {
    if (!key.decides_numbers) continue;
    text += fmt::format("{}={}\n", key.path(), value_to_yaml(key, recipe));
  }
  return hash_text(text);
}

std::vector<RecipeDifference> diff(const Recipe& a, const Recipe& b) {
  std::vector<RecipeDifference> differences;
  for (const RecipeKey& key : recipe_keys()) {
    RecipeDifference difference{key.path(), value_to_yaml(key, a), value_to_yaml(key, b)};
    if (difference.a != difference.b) differences.push_back(std::move(difference));
  }
  return differences;
}
}  // namespace muster
