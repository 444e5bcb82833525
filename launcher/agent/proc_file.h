#pragma once
/// Reading files of /proc and /sys, whose size stat(2) does not tell.

#include <string>

namespace muster {

/// The text of a kernel file; "" when it cannot be read.
std::string read_kernel_file(const char* path);

}  // namespace muster
