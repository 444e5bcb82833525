#pragma once
/// Small text helpers that several layers share: nearest name, joining, hexadecimal.

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace muster {

/// The candidate nearest to `name` by edit distance, or "" when none is near enough to suggest.
std::string nearest_name(std::string_view name, std::span<const std::string> candidates);

/// "a, b, c".
std::string join(std::span<const std::string> parts, std::string_view separator = ", ");

/// Splits at every `separator`; "" gives one empty part.
std::vector<std::string> split(std::string_view text, char separator);

/// Text without leading and trailing blanks.
std::string_view trim(std::string_view text) noexcept;

/// 16 lower-case hexadecimal digits.
std::string hex64(uint64_t value);

/// A double as C's "%a", exact to the bit; the inverse of strtod.
std::string hex_float(double value);

}  // namespace muster
