#include "launcher/agent/proc_file.h"

#include <fcntl.h>

#include <array>

#include "launcher/agent/unique_fd.h"

namespace muster {

std::string read_kernel_file(const char* path) {
  std::string text;
  const UniqueFd fd(::open(path, O_RDONLY | O_CLOEXEC));
  if (!fd.is_open()) return text;
  std::array<char, 4096> buffer;
  ssize_t n = 0;
  while ((n = ::read(fd.get(), buffer.data(), buffer.size())) > 0) {
    text.append(buffer.data(), static_cast<size_t>(n));
  }
  return text;
}

}  // namespace muster
