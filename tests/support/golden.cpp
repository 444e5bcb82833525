#include "tests/support/golden.h"

namespace muster::testing {

std::string golden_path(const std::string& relative) {
  return std::string(MUSTER_SOURCE_DIR "/tests/golden/") + relative;
}

}  // namespace muster::testing
