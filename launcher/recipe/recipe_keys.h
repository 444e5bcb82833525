#pragma once
/// The table of recipe keys: the only place that knows names, types, limits and descriptions.
///
/// The parser, `muster recipe show`, the table in docs/recipes.md, the hash and the suggestions for
/// typing errors are all made from it. Adding a key is one field in Recipe and one row here. Rules
/// between several keys are not in it: see recipe_rules.h.

#include <limits>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "launcher/recipe/recipe.h"

namespace muster {

/// An enum field behind a list of choices: the number of a choice is the value of the enum.
struct ChoiceRef {
  void* field;
  int (*get)(const void* field);
  void (*set)(void* field, int choice);
};

/// The field of one Recipe that a key stands for.
using FieldRef = std::variant<bool*, int64_t*, double*, std::string*, std::vector<std::string>*,
                              std::vector<double>*, Duration*, ChoiceRef>;

/// The limits of a number; infinite by default.
struct Limits {
  double low = -std::numeric_limits<double>::infinity();
  double high = std::numeric_limits<double>::infinity();
  bool excludes_low = false;
  bool excludes_high = false;

  [[nodiscard]] bool contains(double value) const noexcept;
  /// "at least 1", "above 0 and below 1", "" when infinite.
  [[nodiscard]] std::string text() const;
};

struct RecipeKey {
  std::string_view section;
  std::string_view name;
  std::string_view unit;  ///< of a count that may carry it, e.g. "steps"; else ""
  std::vector<std::string> choices;
  Limits limits;
  bool decides_numbers;  ///< counts for recipe_hash
  std::string_view doc;
  FieldRef (*field)(Recipe& recipe);

  /// "section.name".
  [[nodiscard]] std::string path() const;
  /// For people: "whole number", "steps", "number", "text", "list of texts", "cosine | linear", ...
  [[nodiscard]] std::string type_text() const;
};

/// Every key, in the order in which recipes are printed.
const std::vector<RecipeKey>& recipe_keys();

/// The key of "section.name", or null.
const RecipeKey* find_recipe_key(std::string_view path);

/// The names of the sections, in order.
std::vector<std::string> recipe_sections();

/// The value of a key as YAML text that loads to the same value.
std::string value_to_yaml(const RecipeKey& key, const Recipe& recipe);

/// The table as Markdown: key, type, default, meaning. docs/recipes.md holds exactly this text.
std::string recipe_keys_markdown();

}  // namespace muster
