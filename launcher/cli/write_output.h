#pragma once
/// Writing the file that an option names.
///
/// A new or regular file is replaced as a whole, so that nobody reads half of it. Anything else
/// that the name stands for, such as /dev/stdout, a pipe or a link, is written through and stays
/// what it is: a rename would put a file in its place.

#include <string>
#include <string_view>

#include "core/base/result.h"

namespace muster {

/// Whether write_output may work, asked before the work that makes the text. Writes nothing.
/// @error kNotFound no folder to write to; kIo it must not be written
Result<void> check_output(const std::string& path);

/// @error kIo, kNotFound; of a file that could not be written whole nothing is left
Result<void> write_output(const std::string& path, std::string_view text);

}  // namespace muster
