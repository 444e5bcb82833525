#pragma once
/// Everything that differs between what a model wants and what a checkpoint holds, before a byte
/// moves. Pure.

#include <span>
#include <string>
#include <vector>

#include "checkpoint/io/manifest.h"
#include "checkpoint/io/state.h"

namespace muster::checkpoint {

/// One line per fault, sorted: "missing: ...", "shape: ...", "dtype: ...", "coverage: ...",
/// "alias: ...".
struct LoadReport {
  std::vector<std::string> faults;
  /// Tensors of the checkpoint for which this rank has no slot. They are unexpected when that is so
  /// on every rank.
  std::vector<std::string> unused;
};

LoadReport compare_with_slots(const Manifest& manifest, std::span<const TensorSlot> slots,
                              const Aliases& aliases);

/// "unexpected: ..." for one of LoadReport::unused.
std::string unexpected_fault(const Manifest& manifest, const std::string& name);

}  // namespace muster::checkpoint
