#pragma once
/// Strict readers of YAML scalars and lists: what people write, to what programs use.
///
/// The type that is asked for decides, never the look of the text, so `name: no` is the text "no"
/// and `lr: 2e-5` is a number. Each failure says what must hold and what was got, without the key:
/// the caller adds it. They do not check limits.

#include <string>
#include <string_view>
#include <vector>

#include "core/base/result.h"
#include "core/base/time.h"
#include "launcher/recipe/yaml_document.h"

namespace muster {

/// Decimal whole number. No quotes, underscores, exponents, octal or hexadecimal digits.
/// @error kBadRecipe for every reader of this file
Result<int64_t> read_int(const YamlNode& node);
/// A whole number with or without its unit: "10 steps", "1 step", "10" for unit "steps".
Result<int64_t> read_count(const YamlNode& node, std::string_view unit);
/// A finite decimal number: 1, 0.5, 2e-5.
Result<double> read_float(const YamlNode& node);
/// true or false; not yes, no, on, off.
Result<bool> read_bool(const YamlNode& node);
/// Any scalar but null.
Result<std::string> read_text(const YamlNode& node);
/// A number with its unit: "30 s", "500 ms", "2 min".
Result<Duration> read_duration(const YamlNode& node);
Result<std::vector<std::string>> read_text_list(const YamlNode& node);
Result<std::vector<double>> read_float_list(const YamlNode& node);

/// The inverse of read_duration, exact to the nanosecond: "30 s", "1.5 ms".
std::string duration_to_yaml(Duration duration);
/// The inverse of read_text: plain when no reader could misunderstand it, else in double quotes.
std::string text_to_yaml(std::string_view text);

}  // namespace muster
