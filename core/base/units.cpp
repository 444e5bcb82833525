#include "core/base/units.h"

#include <fmt/format.h>

namespace muster {
std::string format_bytes(Bytes bytes) {
  const double n = static_cast<double>(bytes.count);
  if (bytes.count >= (1LL << 30)) return fmt::format("{:.3g} GiB", n / (1LL << 30));
  if (bytes.count >= (1LL << 20)) return fmt::format("{:.3g} MiB", n / (1LL << 20));
  if (bytes.count >= (1LL << 10)) return fmt::format("{:.3g} KiB", n / (1LL << 10));
  return fmt::format("{} B", bytes.count);
}
}  // namespace muster
