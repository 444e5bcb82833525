#pragma once
/// Where the recorded results of other programs lie: tests/golden.

#include <string>

namespace muster::testing {

/// The path of a file below tests/golden, e.g. golden_path("tcpstore/raw.jsonl").
inline std::string golden_path(const std::string& relative) {
  return std::string(MUSTER_SOURCE_DIR "/tests/golden/") + relative;
}

}  // namespace muster::testing
