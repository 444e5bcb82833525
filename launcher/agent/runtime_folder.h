#pragma once
/// The folder of this user for what lives as long as the machine runs: job sockets, the token.

#include <string>
#include <string_view>

#include "core/base/result.h"

namespace muster {

/// `xdg_runtime_dir`/muster, or /tmp/muster-<uid> when that is "". Made if it is missing; nobody
/// else can read it.
/// @error kIo it cannot be made, or is another user's, or others can read it
Result<std::string> runtime_folder(std::string_view xdg_runtime_dir);

/// The same by this process's environment.
Result<std::string> runtime_folder();

}  // namespace muster
