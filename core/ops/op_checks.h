#pragma once
/// The self-test of the operator table: an operator states everything or says why not.

#include <string>
#include <vector>

#include "core/dispatch/op_table.h"

namespace muster::ops {

/// What one definition lacks or states wrongly; empty when it is complete.
std::vector<std::string> faults_of(const OpDef::Facts& facts);

/// Faults of all operators, as "name: fault".
std::vector<std::string> check_ops(const OpTable& table);

}  // namespace muster::ops
