#pragma once
/// Reading the values of options, with one form of complaint.

#include <limits>
#include <string_view>

#include "core/base/result.h"

namespace muster {

inline constexpr int kMaxPort = 65535;
inline constexpr int kAnyInt = std::numeric_limits<int>::max();

/// "--nnodes: must be 1; got "2"".
Error wrong_option(std::string_view option, std::string_view must, std::string_view got);

/// A whole number from `least` to `most`; `must` says so in words.
/// @error kInvalidArgument
Result<int> parse_int_option(std::string_view option, std::string_view text, int least, int most,
                             std::string_view must);

}  // namespace muster
