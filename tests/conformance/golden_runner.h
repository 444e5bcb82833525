#pragma once
/// Runs a golden case by muster's operators and compares everything that the case states.
///
/// Values, layouts, first and second gradients, refusals; and, beyond the case, that the shape rule
/// foretells what the kernel made. An operator that muster lacks is reported as such, never as a
/// pass.

#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "tests/support/golden_case.h"

namespace muster::testing {

struct GoldenOutcome {
  enum class Kind {
    kAgrees,
    kDiffers,
    kNoOperator,  ///< muster has no operator of that name
  };
  Kind kind = Kind::kAgrees;
  std::string text;  ///< what differs, or the operator's name
};

/// Runs one case of an "ops" file. Never throws.
GoldenOutcome run_golden_case(const GoldenFile& file, const nlohmann::json& entry);

}  // namespace muster::testing
