#pragma once
/// A YAML file as plain nodes that know their line and column, and the list of what is wrong in it.
///
/// Recipes and drills are read through it, so both are equally strict: one document, scalar keys,
/// no duplicate keys, no tabs as indentation, no tags, no merge keys. Anchors and aliases work;
/// they share nodes, so no file can blow up. It does not interpret scalars: that is yaml_values.h.

#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "core/base/error.h"

namespace muster {

/// A place in a file, both 1-based; line 0 stands for the command line.
struct YamlPlace {
  int line = 0;
  int column = 0;
};

struct YamlNode;
using YamlNodePtr = std::shared_ptr<const YamlNode>;

/// One `key: value` of a map.
struct YamlEntry {
  std::string key;
  YamlPlace place;  ///< of the key
  YamlNodePtr value;
};

struct YamlNode {
  enum class Kind : uint8_t { kNull, kScalar, kList, kMap };
  Kind kind = Kind::kNull;
  YamlPlace place;
  std::string text;                ///< of a scalar
  bool is_quoted = false;          ///< a scalar in quotes or block style: text, never a number
  std::vector<YamlNodePtr> items;  ///< of a list
  std::vector<YamlEntry> entries;  ///< of a map, in file order

  /// The entry of a map, or null.
  [[nodiscard]] const YamlEntry* find(std::string_view key) const;
  /// What it holds, for messages: `"abc"`, `a list of 2`, `a map`, `nothing`.
  [[nodiscard]] std::string describe() const;
};

/// Everything found wrong in one file and its overrides. Collected, then raised at once.
class YamlProblems {
 public:
  /// `text` is one line: `section.key: what; got value`.
  void add(YamlPlace place, std::string text);
  [[nodiscard]] bool empty() const noexcept { return problems_.empty(); }
  /// kBadRecipe, one `path:line:col: text [BadRecipe]` a line, in file order, command line last.
  [[nodiscard]] Error to_error(const std::string& path) const;

 private:
  std::vector<std::pair<YamlPlace, std::string>> problems_;
};

/// Parses one YAML document. Returns null when the text is no YAML; other faults are added to
/// `problems` and parsing goes on. An empty document is an empty map.
YamlNodePtr parse_yaml(std::string_view text, YamlProblems& problems);

/// `; did you mean "..."?` for the candidate nearest to `name`, or "".
std::string did_you_mean(std::string_view name, const std::vector<std::string>& candidates);

}  // namespace muster
