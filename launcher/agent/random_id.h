#pragma once
/// Random names from the kernel's generator: secrets, run ids, folder suffixes.

#include <cstddef>
#include <string>

namespace muster {

/// `nbytes` random bytes as lower-case hexadecimal digits. @error throws kIo
std::string random_hex(size_t nbytes);

/// A random UUID (version 4).
std::string random_uuid();

}  // namespace muster
