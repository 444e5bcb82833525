#include "core/base/json_lines.h"

#include <algorithm>
#include <charconv>
#include <nlohmann/json.hpp>

#include "core/base/text.h"

namespace muster {

std::optional<nlohmann::json> parse_json_object(std::string_view text) {
  nlohmann::json json = nlohmann::json::parse(text, nullptr, /*allow_exceptions=*/false);
  if (json.is_discarded() || !json.is_object()) return std::nullopt;
  return json;
}

std::optional<int64_t> int_field(const nlohmann::json& json, const char* key) {
  const auto found = json.find(key);
  if (found == json.end() || !found->is_number_integer()) return std::nullopt;
  return found->get<int64_t>();
}

std::string text_field(const nlohmann::json& json, const char* key) {
  const auto found = json.find(key);
  return found != json.end() && found->is_string() ? found->get<std::string>() : std::string();
}

std::optional<int64_t> step_of_checkpoint_name(std::string_view name) {
  static constexpr std::string_view kPrefix = "step-";
  if (!name.starts_with(kPrefix)) return std::nullopt;
  name.remove_prefix(kPrefix.size());
  int64_t step = 0;
  const auto [rest, status] = std::from_chars(name.data(), name.data() + name.size(), step);
  if (status != std::errc() || rest != name.data() + name.size()) return std::nullopt;
  return step;
}

int64_t for_each_line(std::string_view text, const std::function<bool(std::string_view)>& read) {
  int64_t damaged = 0;
  for (size_t at = 0; at < text.size();) {
    const size_t end = std::min(text.find('\n', at), text.size());
    const std::string_view line = text.substr(at, end - at);
    if (!trim(line).empty() && !read(line)) ++damaged;
    at = end + 1;
  }
  return damaged;
}
}  // namespace muster
