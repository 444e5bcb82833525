#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <optional>

#include "core/base/file_system.h"
#include "core/base/text.h"
#include "launcher/recipe/recipe.h"
#include "launcher/recipe/recipe_keys.h"
#include "launcher/recipe/recipe_rules.h"
#include "launcher/recipe/yaml_document.h"
#include "launcher/recipe/yaml_values.h"

namespace muster {
namespace {
constexpr int kFormatVersion = 1;

std::vector<std::string> keys_of_section(std::string_view section) {
  std::vector<std::string> names;
  for (const RecipeKey& key : recipe_keys()) {
    if (key.section == section) names.push_back(key.path());
  }
  return names;
}

// A key that exists, for one that does not: near in its own section, or by its name in another.
std::string suggest_key(const std::string& path) {
  const size_t dot = path.find('.');
  const std::string name = path.substr(dot + 1);
  const std::string near = did_you_mean(path, keys_of_section(path.substr(0, dot)));
  if (!near.empty()) return near;
  std::vector<std::string> everywhere;
  for (const RecipeKey& key : recipe_keys()) {
    if (key.name == name) return fmt::format("; did you mean \"{}\"?", key.path());
    everywhere.push_back(key.path());
  }
  return did_you_mean(path, everywhere);
}

// Writes one YAML value into the field of a key. @error kBadRecipe without the key's name
Result<void> assign(const RecipeKey& key, const YamlNode& node, Recipe& recipe) {
  struct Visitor {
    const RecipeKey& key;
    const YamlNode& node;

    Result<void> check_limits(double value) const {
      if (key.limits.contains(value)) return {};
      return make_error(ErrorCode::kBadRecipe, "must be {}; got {}", key.limits.text(), value);
    }
    Result<int> choice() const {
      const auto at = std::find(key.choices.begin(), key.choices.end(), node.text);
      if (node.kind == YamlNode::Kind::kScalar && at != key.choices.end()) {
        return static_cast<int>(at - key.choices.begin());
      }
      return make_error(ErrorCode::kBadRecipe, "must be one of {}; got {}{}", join(key.choices),
                        node.describe(), did_you_mean(node.text, key.choices));
    }

    Result<void> operator()(bool* into) const {
      *into = MUSTER_TRY(read_bool(node));
      return {};
    }
    Result<void> operator()(int64_t* into) const {
      *into = MUSTER_TRY(key.unit.empty() ? read_int(node) : read_count(node, key.unit));
      return check_limits(static_cast<double>(*into));
    }
    Result<void> operator()(double* into) const {
      *into = MUSTER_TRY(read_float(node));
      return check_limits(*into);
    }
    Result<void> operator()(std::string* into) const {
      if (!key.choices.empty()) MUSTER_TRY(choice());
      *into = MUSTER_TRY(read_text(node));
      return {};
    }
    Result<void> operator()(std::vector<std::string>* into) const {
      *into = MUSTER_TRY(read_text_list(node));
      return {};
    }
    Result<void> operator()(std::vector<double>* into) const {
      *into = MUSTER_TRY(read_float_list(node));
      for (const double value : *into) MUSTER_TRY(check_limits(value));
      return {};
    }
    Result<void> operator()(Duration* into) const {
      *into = MUSTER_TRY(read_duration(node));
      if (key.limits.contains(to_seconds(*into))) return {};
      return make_error(ErrorCode::kBadRecipe, "must be {} s; got {}", key.limits.text(),
                        node.text);
    }
    Result<void> operator()(const ChoiceRef& into) const {
      into.set(into.field, MUSTER_TRY(choice()));
      return {};
    }
  };
  return std::visit(Visitor{key, node}, key.field(recipe));
}

// Gathers what the file and the command line set, then decodes it. Goes on after each fault, so
// that all of them are told at once.
class Loader {
 public:
  Loader(const std::string& path, YamlProblems& problems) : path_(path), problems_(problems) {}

  void read_document(const YamlNode& root) {
    if (root.kind != YamlNode::Kind::kMap) {
      problems_.add(root.place,
                    fmt::format("a recipe must be a map of sections; got {}", root.describe()));
      return;
    }
    for (const YamlEntry& entry : root.entries) {
      if (entry.key == "recipe") {
        read_version(entry);
      } else {
        read_section(entry);
      }
    }
  }

  void apply_override(const std::string& text) {
    if (text.starts_with('~')) return erase(text.substr(1));
    const size_t equals = text.find('=');
    if (equals == std::string::npos || equals == 0) {
      problems_.add({}, fmt::format("an override must be section.key=value or ~section.key; got "
                                    "\"{}\"",
                                    text));
      return;
    }
    const std::string path = text.substr(0, equals);
    const RecipeKey* key = find_recipe_key(path);
    if (key == nullptr) {
      problems_.add({}, fmt::format("unknown key \"{}\"{}", path, suggest_key(path)));
      return;
    }
    if (const YamlNodePtr node = override_value(*key, text.substr(equals + 1))) {
      settings_[path] = node;
    }
  }

  Recipe decode() {
    Recipe recipe;
    recipe.source = path_;
    bool all_decoded = true;
    for (const auto& [path, node] : settings_) {
      const bool is_override = node->place.line == 0;
      recipe.origins[path] = {is_override ? Origin::Kind::kCommandLine : Origin::Kind::kFile,
                              is_override ? std::string() : path_, node->place.line,
                              node->place.column};
      const Result<void> assigned = assign(*find_recipe_key(path), *node, recipe);
      if (assigned.ok()) continue;
      all_decoded = false;
      problems_.add(node->place, fmt::format("{}: {}", path, assigned.error().message()));
    }
    // A rule that fails because of a value already refused would only confuse.
    if (all_decoded) check_rules(recipe);
    return recipe;
  }

 private:
  void read_version(const YamlEntry& entry) {
    const Result<int64_t> version = read_int(*entry.value);
    if (version.ok() && *version == kFormatVersion) return;
    problems_.add(entry.value->place, fmt::format("recipe: the format version must be {}; got {}",
                                                  kFormatVersion, entry.value->describe()));
  }

  void read_section(const YamlEntry& section) {
    const std::vector<std::string> known = recipe_sections();
    if (std::find(known.begin(), known.end(), section.key) == known.end()) {
      problems_.add(section.place, fmt::format("unknown key \"{}\"{}", section.key,
                                               did_you_mean(section.key, known)));
      return;
    }
    section_places_[section.key] = section.place;
    if (section.value->kind == YamlNode::Kind::kNull) return;
    if (section.value->kind != YamlNode::Kind::kMap) {
      problems_.add(section.value->place, fmt::format("{}: must be a map of keys; got {}",
                                                      section.key, section.value->describe()));
      return;
    }
    for (const YamlEntry& entry : section.value->entries) {
      const std::string path = fmt::format("{}.{}", section.key, entry.key);
      if (find_recipe_key(path) == nullptr) {
        problems_.add(entry.place, fmt::format("unknown key \"{}\"{}", path, suggest_key(path)));
        continue;
      }
      if (entry.value->kind != YamlNode::Kind::kNull) {
        settings_[path] = entry.value;
        continue;
      }
      problems_.add(entry.place, fmt::format("{}: must have a value; got nothing; leave the key "
                                             "out for its default",
                                             path));
    }
  }

  // A place on the command line has no line number; the node of an override has line 0.
  YamlNodePtr override_value(const RecipeKey& key, const std::string& text) {
    const auto node = std::make_shared<YamlNode>();
    node->kind = YamlNode::Kind::kScalar;
    node->text = text;
    Recipe scratch;
    const FieldRef field = key.field(scratch);
    if (std::holds_alternative<std::string*>(field)) return node;
    if (std::holds_alternative<std::vector<std::string>*>(field) && !text.starts_with('[')) {
      const auto list = std::make_shared<YamlNode>();
      list->kind = YamlNode::Kind::kList;
      if (!text.empty()) list->items.push_back(node);
      return list;
    }
    if (text.empty()) {
      problems_.add({}, fmt::format("{}: must have a value; got nothing; ~{} goes back to the "
                                    "default",
                                    key.path(), key.path()));
      return nullptr;
    }
    YamlProblems local;
    const YamlNodePtr parsed = parse_yaml(text, local);
    if (parsed == nullptr || !local.empty()) {
      problems_.add({}, fmt::format("{}: must be a YAML value; got \"{}\"", key.path(), text));
      return nullptr;
    }
    *node = *parsed;
    node->place = {};
    return node;
  }

  void erase(const std::string& path) {
    const std::vector<std::string> sections = recipe_sections();
    const bool is_section = std::find(sections.begin(), sections.end(), path) != sections.end();
    if (!is_section && find_recipe_key(path) == nullptr) {
      problems_.add({}, fmt::format("unknown key \"~{}\"{}", path, suggest_key(path)));
      return;
    }
    const size_t erased = std::erase_if(settings_, [&](const auto& setting) {
      return setting.first == path || (is_section && setting.first.starts_with(path + "."));
    });
    if (erased == 0) {
      problems_.add({},
                    fmt::format("~{}: {} does not set it; nothing to go back from", path, path_));
    }
  }

  void check_rules(const Recipe& recipe) {
    for (const BrokenRule& rule : broken_rules(recipe)) {
      problems_.add(place_of(rule), fmt::format("{}: {}", rule.keys.front(), rule.text));
    }
  }

  // Where to point: the first key of the rule that somebody has set, else its section.
  YamlPlace place_of(const BrokenRule& rule) const {
    for (const std::string& key : rule.keys) {
      const auto found = settings_.find(key);
      if (found != settings_.end()) return found->second->place;
    }
    const std::string& first = rule.keys.front();
    const auto section = section_places_.find(first.substr(0, first.find('.')));
    return section != section_places_.end() ? section->second : YamlPlace{1, 1};
  }

  const std::string& path_;
  YamlProblems& problems_;
  std::map<std::string, YamlNodePtr> settings_;  // by "section.key"
  std::map<std::string, YamlPlace> section_places_;
};
}  // namespace

Result<Recipe> parse_recipe(std::string_view text, const std::string& path,
                            const std::vector<std::string>& overrides) {
  YamlProblems problems;
  const YamlNodePtr root = parse_yaml(text, problems);
  if (root == nullptr) return problems.to_error(path);
  Loader loader(path, problems);
  loader.read_document(*root);
  for (const std::string& override_text : overrides) loader.apply_override(override_text);
  Recipe recipe = loader.decode();
  if (!problems.empty()) return problems.to_error(path);
  return recipe;
}

Result<Recipe> load_recipe(const std::string& path, const std::vector<std::string>& overrides) {
  const std::string text = MUSTER_TRY(read_text(real_file_system(), path), "recipe " + path);
  return parse_recipe(text, path, overrides);
}

Result<void> check_recipe(const Recipe& recipe, int world_size) {
  std::string message;
  for (const BrokenRule& rule : broken_rules(recipe, world_size)) {
    // The first key that was set by somebody is where to look.
    Origin origin;
    for (const std::string& key : rule.keys) {
      if (origin.kind == Origin::Kind::kDefault) origin = recipe.origin_of(key);
    }
    const std::string where = origin.kind == Origin::Kind::kDefault ? recipe.source : origin.text();
    const bool is_first = message.empty();
    message +=
        fmt::format("{}{}: {}: {}", is_first ? "" : "\n", where, rule.keys.front(), rule.text);
    if (!is_first) message += fmt::format(" [{}]", to_string(ErrorCode::kBadRecipe));
  }
  if (message.empty()) return {};
  return Error(ErrorCode::kBadRecipe, message);
}
}  // namespace muster
