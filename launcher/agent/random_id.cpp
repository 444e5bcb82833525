#include "launcher/agent/random_id.h"

#include <sys/random.h>

#include <cerrno>
#include <vector>

#include "core/base/error.h"

namespace muster {

std::string random_hex(size_t nbytes) {
  std::vector<unsigned char> bytes(nbytes);
  size_t got = 0;
  while (got < nbytes) {
    const ssize_t n = ::getrandom(bytes.data() + got, nbytes - got, 0);
    if (n < 0 && errno == EINTR) continue;
    MUSTER_CHECK(n > 0, ErrorCode::kIo, "random_hex: getrandom must give {} bytes; got {}", nbytes,
                 errno_text(errno));
    got += static_cast<size_t>(n);
  }
  std::string text;
  text.reserve(2 * nbytes);
  for (const unsigned char byte : bytes) text += fmt::format("{:02x}", byte);
  return text;
}

std::string random_uuid() {
  std::string hex = random_hex(16);
  hex[12] = '4';                    // version
  hex[16] = "89ab"[hex[16] & 0x3];  // variant
  return hex.substr(0, 8) + '-' + hex.substr(8, 4) + '-' + hex.substr(12, 4) + '-' +
         hex.substr(16, 4) + '-' + hex.substr(20);
}

}  // namespace muster
