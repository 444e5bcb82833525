#include "launcher/recipe/yaml_document.h"

#include <fmt/format.h>
#include <yaml-cpp/eventhandler.h>
#include <yaml-cpp/exceptions.h>
#include <yaml-cpp/parser.h>

#include <algorithm>
#include <optional>
#include <sstream>

#include "core/base/text.h"

namespace muster {
namespace {
YamlPlace place_of(const YAML::Mark& mark) { return {mark.line + 1, mark.column + 1}; }

// Builds nodes from the parser's events. yaml-cpp's own node tree would drop duplicate keys and the
// marks of keys.
class NodeBuilder final : public YAML::EventHandler {
 public:
  explicit NodeBuilder(YamlProblems& problems) : problems_(problems) {}

  [[nodiscard]] YamlNodePtr root() const { return root_; }

  void OnDocumentStart(const YAML::Mark& /*mark*/) override {}
  void OnDocumentEnd() override {}

  void OnNull(const YAML::Mark& mark, YAML::anchor_t anchor) override {
    add(make(mark, YamlNode::Kind::kNull, anchor), anchor);
  }

  void OnAlias(const YAML::Mark& mark, YAML::anchor_t anchor) override {
    const YamlNodePtr target = anchor < anchors_.size() ? anchors_[anchor] : nullptr;
    if (target == nullptr) {
      problems_.add(place_of(mark), "an alias must not lie inside of what it stands for");
      add(make(mark, YamlNode::Kind::kNull, 0), 0);
      return;
    }
    const auto node = std::make_shared<YamlNode>(*target);
    node->place = place_of(mark);
    add(node, 0);
  }

  void OnScalar(const YAML::Mark& mark, const std::string& tag, YAML::anchor_t anchor,
                const std::string& value) override {
    check_tag(mark, tag);
    const auto node = make(mark, YamlNode::Kind::kScalar, anchor);
    node->text = value;
    node->is_quoted = tag == "!";
    add(node, anchor);
  }

  void OnSequenceStart(const YAML::Mark& mark, const std::string& tag, YAML::anchor_t anchor,
                       YAML::EmitterStyle::value /*style*/) override {
    check_tag(mark, tag);
    open_.push_back({make(mark, YamlNode::Kind::kList, anchor), anchor, std::nullopt});
  }
  void OnSequenceEnd() override { close(); }

  void OnMapStart(const YAML::Mark& mark, const std::string& tag, YAML::anchor_t anchor,
                  YAML::EmitterStyle::value /*style*/) override {
    check_tag(mark, tag);
    open_.push_back({make(mark, YamlNode::Kind::kMap, anchor), anchor, std::nullopt});
  }
  void OnMapEnd() override { close(); }

 private:
  struct Frame {
    std::shared_ptr<YamlNode> node;
    YAML::anchor_t anchor;
    std::optional<YamlEntry> entry;  // a key that waits for its value
  };

  static std::shared_ptr<YamlNode> make(const YAML::Mark& mark, YamlNode::Kind kind,
                                        YAML::anchor_t /*anchor*/) {
    const auto node = std::make_shared<YamlNode>();
    node->kind = kind;
    node->place = place_of(mark);
    return node;
  }

  void check_tag(const YAML::Mark& mark, const std::string& tag) {
    if (tag.empty() || tag == "?" || tag == "!") return;
    problems_.add(place_of(mark), fmt::format("tags have no meaning here; got {}", tag));
  }

  void close() {
    const Frame frame = std::move(open_.back());
    open_.pop_back();
    add(frame.node, frame.anchor);
  }

  void add(std::shared_ptr<YamlNode> node, YAML::anchor_t anchor) {
    // Registered when complete, so that an alias to an open node is seen as what it is: a cycle.
    if (anchor != 0) {
      if (anchors_.size() <= anchor) anchors_.resize(anchor + 1);
      anchors_[anchor] = node;
    }
    if (open_.empty()) {
      root_ = std::move(node);
      return;
    }
    Frame& frame = open_.back();
    if (frame.node->kind == YamlNode::Kind::kList) {
      frame.node->items.push_back(std::move(node));
    } else if (!frame.entry) {
      frame.entry = key_entry(*frame.node, *node);
    } else {
      frame.entry->value = std::move(node);
      // A refused key ("" marks it) takes its value along.
      if (!frame.entry->key.empty()) frame.node->entries.push_back(std::move(*frame.entry));
      frame.entry.reset();
    }
  }

  YamlEntry key_entry(const YamlNode& map, const YamlNode& key) {
    YamlEntry entry{"", key.place, nullptr};
    if (key.kind != YamlNode::Kind::kScalar || key.text.empty()) {
      problems_.add(key.place, fmt::format("a key must be a name; got {}", key.describe()));
    } else if (key.text == "<<" && !key.is_quoted) {
      problems_.add(key.place, "merge keys (<<) are not supported; write the keys out");
    } else if (const YamlEntry* first = map.find(key.text)) {
      problems_.add(key.place, fmt::format("duplicate key \"{}\"; first set at line {}, column {}",
                                           key.text, first->place.line, first->place.column));
    } else {
      entry.key = key.text;
    }
    return entry;
  }

  YamlProblems& problems_;
  YamlNodePtr root_;
  std::vector<Frame> open_;
  std::vector<YamlNodePtr> anchors_;
};

// yaml-cpp takes a tab as one blank of indentation, which is never what the eye sees.
bool has_tab_indentation(std::string_view text, YamlProblems& problems) {
  bool found = false;
  int line_number = 0;
  for (const std::string& line : split(text, '\n')) {
    ++line_number;
    const size_t first = line.find_first_not_of(" \t\r");
    const size_t tab = line.find('\t');
    if (tab == std::string::npos || tab > first) continue;
    problems.add({line_number, static_cast<int>(tab) + 1},
                 "a tab must not indent; use spaces only");
    found = true;
  }
  return found;
}
}  // namespace

const YamlEntry* YamlNode::find(std::string_view key) const {
  for (const YamlEntry& entry : entries) {
    if (entry.key == key) return &entry;
  }
  return nullptr;
}

std::string YamlNode::describe() const {
  switch (kind) {
    case Kind::kNull:
      return "nothing";
    case Kind::kScalar:
      return fmt::format("\"{}\"", text.size() <= 80 ? text : text.substr(0, 77) + "...");
    case Kind::kList:
      return fmt::format("a list of {}", items.size());
    case Kind::kMap:
      return "a map";
  }
  return "nothing";
}

void YamlProblems::add(YamlPlace place, std::string text) {
  problems_.emplace_back(place, std::move(text));
}

Error YamlProblems::to_error(const std::string& path) const {
  auto sorted = problems_;
  std::stable_sort(sorted.begin(), sorted.end(), [](const auto& a, const auto& b) {
    const auto key = [](YamlPlace place) {
      return std::tuple(place.line == 0, place.line, place.column);
    };
    return key(a.first) < key(b.first);
  });
  std::string message;
  for (const auto& [place, text] : sorted) {
    // Error itself adds the code to the first line only.
    if (!message.empty()) message += '\n';
    const size_t line_at = message.size();
    message += place.line == 0 ? fmt::format("command line: {}", text)
                               : fmt::format("{}:{}:{}: {}", path, place.line, place.column, text);
    if (line_at != 0) message += fmt::format(" [{}]", to_string(ErrorCode::kBadRecipe));
  }
  return {ErrorCode::kBadRecipe, message};
}

YamlNodePtr parse_yaml(std::string_view text, YamlProblems& problems) {
  if (has_tab_indentation(text, problems)) return nullptr;
  std::istringstream stream{std::string(text)};
  NodeBuilder builder(problems);
  try {
    YAML::Parser parser(stream);
    parser.HandleNextDocument(builder);
    const YamlNodePtr root = builder.root();
    NodeBuilder rest(problems);
    if (parser.HandleNextDocument(rest)) {
      const YamlPlace place = rest.root() != nullptr ? rest.root()->place : YamlPlace{1, 1};
      problems.add(place, "a file must hold one document; got a second one");
    }
  } catch (const YAML::Exception& error) {
    problems.add(place_of(error.mark), error.msg);
    return nullptr;
  }
  if (builder.root() != nullptr && builder.root()->kind != YamlNode::Kind::kNull) {
    return builder.root();
  }
  const auto empty = std::make_shared<YamlNode>();
  empty->kind = YamlNode::Kind::kMap;
  empty->place = {1, 1};
  return empty;
}

std::string did_you_mean(std::string_view name, const std::vector<std::string>& candidates) {
  const std::string nearest = nearest_name(name, candidates);
  return nearest.empty() ? "" : fmt::format("; did you mean \"{}\"?", nearest);
}
}  // namespace muster
