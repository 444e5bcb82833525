#include "launcher/recipe/yaml_values.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>

#include "core/base/text.h"

namespace muster {
namespace {
constexpr ErrorCode kBad = ErrorCode::kBadRecipe;

bool is_plain(const YamlNode& node) {
  return node.kind == YamlNode::Kind::kScalar && !node.is_quoted;
}

std::string_view without_plus(std::string_view text) {
  if (text.size() > 1 && text.front() == '+' && text[1] != '-') text.remove_prefix(1);
  return text;
}

template <typename T>
bool parse_all(std::string_view text, T& into) {
  const std::string_view digits = without_plus(text);
  const char* const end = digits.data() + digits.size();
  const auto [rest, status] = std::from_chars(digits.data(), end, into);
  return status == std::errc() && rest == end;
}

// What the writer of a refused whole number probably meant, as a hint for the message.
std::string whole_number_hint(std::string_view text) {
  std::string digits(text);
  std::erase(digits, '_');
  double value = 0;
  if (!parse_all(digits, value) || value != std::floor(value) || std::abs(value) > 9e15) return "";
  return fmt::format("; write {}", static_cast<int64_t>(value));
}

Error not_a(std::string_view what, const YamlNode& node, std::string_view hint = "") {
  if (node.kind == YamlNode::Kind::kScalar && node.is_quoted) {
    return make_error(kBad, "must be {}; got the quoted text {}{}", what, node.describe(), hint);
  }
  return make_error(kBad, "must be {}; got {}{}", what, node.describe(), hint);
}

bool is_utf8(std::string_view text) {
  for (size_t at = 0; at < text.size();) {
    const auto lead = static_cast<unsigned char>(text[at++]);
    const int more = lead < 0x80                   ? 0
                     : lead >= 0xc2 && lead < 0xe0 ? 1
                     : lead >= 0xe0 && lead < 0xf0 ? 2
                     : lead >= 0xf0 && lead < 0xf5 ? 3
                                                   : -1;
    if (more < 0 || text.size() - at < static_cast<size_t>(more)) return false;
    for (int i = 0; i < more; ++i, ++at) {
      const auto byte = static_cast<unsigned char>(text[at]);
      const bool is_overlong =
          i == 0 && ((lead == 0xe0 && byte < 0xa0) || (lead == 0xf0 && byte < 0x90));
      const bool is_no_character =
          i == 0 && ((lead == 0xed && byte >= 0xa0) || (lead == 0xf4 && byte >= 0x90));
      if (byte < 0x80 || byte >= 0xc0 || is_overlong || is_no_character) return false;
    }
  }
  return true;
}

bool has_leading_zero(std::string_view text) {
  if (!text.empty() && (text.front() == '-' || text.front() == '+')) text.remove_prefix(1);
  return text.size() > 1 && text.front() == '0' && text[1] >= '0' && text[1] <= '9';
}
}  // namespace

Result<int64_t> read_int(const YamlNode& node) {
  int64_t value = 0;
  if (!is_plain(node) || !parse_all(node.text, value)) {
    return not_a("a whole number", node,
                 is_plain(node) ? whole_number_hint(node.text) : std::string());
  }
  if (has_leading_zero(node.text)) {
    return not_a("a whole number without leading zeros", node);
  }
  return value;
}

Result<int64_t> read_count(const YamlNode& node, std::string_view unit) {
  std::string_view number = trim(node.text);
  std::string_view singular = unit;
  singular.remove_suffix(1);
  for (const std::string_view suffix : {unit, singular}) {
    if (number.size() > suffix.size() && number.ends_with(suffix) &&
        number[number.size() - suffix.size() - 1] == ' ') {
      number = trim(number.substr(0, number.size() - suffix.size()));
      break;
    }
  }
  int64_t value = 0;
  if (!is_plain(node) || !parse_all(number, value) || has_leading_zero(number)) {
    return not_a(fmt::format("a number of {0}, as \"10 {0}\" or 10", unit), node);
  }
  return value;
}

Result<double> read_float(const YamlNode& node) {
  double value = 0;
  if (!is_plain(node) || !parse_all(node.text, value) || !std::isfinite(value)) {
    return not_a("a number", node);
  }
  return value;
}

Result<bool> read_bool(const YamlNode& node) {
  if (is_plain(node) && node.text == "true") return true;
  if (is_plain(node) && node.text == "false") return false;
  return not_a("true or false", node);
}

Result<std::string> read_text(const YamlNode& node) {
  if (node.kind != YamlNode::Kind::kScalar) return not_a("a text", node);
  // Checkpoints, events and reports hold the recipe as JSON.
  if (!is_utf8(node.text)) return make_error(kBad, "must be UTF-8; got other bytes");
  return node.text;
}

Result<Duration> read_duration(const YamlNode& node) {
  static constexpr std::string_view kWhat = "a time with its unit (us, ms, s, min, h)";
  if (!is_plain(node)) return not_a(kWhat, node);
  double bare = 0;
  if (parse_all(node.text, bare)) {
    return not_a(kWhat, node, fmt::format("; did you mean \"{} s\"?", node.text));
  }
  Result<Duration> duration = parse_duration(node.text);
  if (!duration.ok()) return not_a(kWhat, node);
  return duration;
}

Result<std::vector<std::string>> read_text_list(const YamlNode& node) {
  if (node.kind != YamlNode::Kind::kList) return not_a("a list of texts, as [a, b]", node);
  std::vector<std::string> texts;
  for (const YamlNodePtr& item : node.items) texts.push_back(MUSTER_TRY(read_text(*item)));
  return texts;
}

Result<std::vector<double>> read_float_list(const YamlNode& node) {
  if (node.kind != YamlNode::Kind::kList) return not_a("a list of numbers, as [0.9, 0.95]", node);
  std::vector<double> numbers;
  for (const YamlNodePtr& item : node.items) numbers.push_back(MUSTER_TRY(read_float(*item)));
  return numbers;
}

std::string duration_to_yaml(Duration duration) {
  struct Unit {
    std::string_view name;
    int64_t ns;
  };
  static constexpr std::array<Unit, 4> kUnits = {
      {{"h", 3'600'000'000'000}, {"min", 60'000'000'000}, {"s", 1'000'000'000}, {"ms", 1'000'000}}};
  const int64_t ns = duration.count();
  if (ns == 0) return "0 s";
  for (const Unit& unit : kUnits) {
    if (ns % unit.ns == 0) return fmt::format("{} {}", ns / unit.ns, unit.name);
  }
  if (ns % 1000 == 0) return fmt::format("{} us", ns / 1000);
  return fmt::format("{}.{:03} us", ns / 1000, ns % 1000);
}

std::string text_to_yaml(std::string_view text) {
  const auto is_safe = [](char c) {
    return std::isalnum(static_cast<unsigned char>(c)) != 0 || c == '_' || c == '-' || c == '.' ||
           c == '/' || c == '+';
  };
  // Other YAML readers would take these words for something else than text.
  static constexpr std::array<std::string_view, 9> kWords = {"true", "false", "null", "yes", "no",
                                                             "on",   "off",   "y",    "n"};
  std::string lower(text);
  std::transform(lower.begin(), lower.end(), lower.begin(),
                 [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
  const bool is_word = std::find(kWords.begin(), kWords.end(), lower) != kWords.end();
  const bool starts_well = !text.empty() && (std::isalpha(static_cast<unsigned char>(text[0])) ||
                                             text[0] == '/' || text[0] == '_');
  if (starts_well && !is_word && std::all_of(text.begin(), text.end(), is_safe)) {
    return std::string(text);
  }
  std::string quoted = "\"";
  for (const char c : text) {
    const auto byte = static_cast<unsigned char>(c);
    if (c == '"' || c == '\\') {
      quoted += '\\';
      quoted += c;
    } else if (byte < 0x20 || byte == 0x7f) {
      quoted += fmt::format("\\x{:02x}", byte);
    } else {
      quoted += c;
    }
  }
  return quoted + "\"";
}
}  // namespace muster
