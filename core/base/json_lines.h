#pragma once
/// Reading files of one JSON object a line, as runs leave them: a field that is missing or of
/// another type is absent, and half a line, which a killed process may leave, is counted.
///
/// Pure. Not for configuration, which is read strictly (launcher/recipe).

#include <cstdint>
#include <functional>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <string_view>

namespace muster {

/// The object that `text` holds; nothing when it holds none
std::optional<nlohmann::json> parse_json_object(std::string_view text);

/// A field of that name and type.
std::optional<int64_t> int_field(const nlohmann::json& json, const char* key);
/// "" when absent.
std::string text_field(const nlohmann::json& json, const char* key);

/// The step of a checkpoint's name, "step-00000020".
std::optional<int64_t> step_of_checkpoint_name(std::string_view name);

/// Calls `read` for each line that is not blank; it returns whether the line was whole. Returns the
/// number of those that were not.
int64_t for_each_line(std::string_view text, const std::function<bool(std::string_view)>& read);

}  // namespace muster
