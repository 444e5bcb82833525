#pragma once
/// Finds parameters and gradients that should be the same on several ranks and are not.
///
/// A missing or doubled reduction of something replicated is the commonest wrong answer of parallel
/// training, and it makes no noise: weights drift apart. Placements say what is replicated, so a
/// check every so many steps can prove that it still is.

#include <string>
#include <vector>

#include "fsdp/fully_shard.h"

namespace muster::fsdp {

struct ReplicaFault {
  std::string name;  ///< of the parameter
  std::string what;  ///< "value" or "gradient"
  std::string axis;  ///< along which ranks differ
  double max_difference = 0;
  /// "h.0.ln_1.weight: gradient differs along axis tp by up to 0.5".
  [[nodiscard]] std::string describe() const;
};

/// Compares 64-bit hashes of all replicated pieces and of their gradients along every axis that
/// replicates them, then measures those that differ. All ranks along an axis get the same list.
/// @collective all ranks of the parameters' meshes; one gather for each axis, and two reductions
/// for each fault
std::vector<ReplicaFault> find_replica_faults(const std::vector<NamedShard>& parameters);

}  // namespace muster::fsdp
