#pragma once
/// Golden cases in which muster is known to differ; the list is known_gaps.txt.

#include <map>
#include <string>

namespace muster::testing {

/// The reason by "file/id", such as "unary/sinc.special.f64" or "promotion/add.dim_dim".
const std::map<std::string, std::string>& known_gaps();

}  // namespace muster::testing
