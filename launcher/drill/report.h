#pragma once
/// The outcome of a drill, for people and for programs. Pure: from values to text.

#include <string>
#include <vector>

#include "launcher/drill/compare.h"

namespace muster {

struct DrillReport {
  std::string drill;  ///< path of the drill file
  std::vector<Check> checks;
  DrillEvidence evidence;

  /// Every check holds.
  [[nodiscard]] bool ok() const;
};

/// A table of the checks, one a line, with a closing line.
std::string report_table(const DrillReport& report);

/// `ok`, `restarts`, `resumed_from_step`, `recovery_ms`, `leftovers`, `checks`, `runs` as JSON.
std::string report_json(const DrillReport& report);

}  // namespace muster
