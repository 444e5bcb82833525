#pragma once
/// The calls behind PyTorch's table of operators on DTensors, by the names that the table has.

#include <functional>
#include <map>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "dist/tensor/dtensor.h"

namespace muster::testing {

using DTensorCall = std::function<std::vector<Tensor>(const std::vector<Tensor>&)>;

/// Every call that muster has operators for; they take plain tensors as well.
const std::map<std::string, DTensorCall>& golden_calls();
/// The name of a case's call: its id without the kind of sizes.
std::string golden_call_name(const nlohmann::json& golden);

/// `full` on a mesh of one axis of two ranks. Ranks hold different shares of a Partial; all combine
/// to `full` exactly.
Tensor golden_placed(const Tensor& full, const MeshRef& mesh, Placement placement);

}  // namespace muster::testing
