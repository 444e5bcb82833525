#pragma once
/// What a style makes of one module. Internal to dist/parallel.

#include <memory>
#include <string>
#include <vector>

#include "dist/parallel/plan.h"

namespace muster::parallel {

/// How one parameter of a module is cut.
struct ParameterCut {
  std::string name;  ///< the owner's name: "weight"
  Placement placement;
  bool has_partial_gradient = false;
};

/// What the installed styles of one plan share.
struct PlanContext {
  MeshRef axis;
  /// Length of the sequence that was cut last, over all ranks: pieces may be uneven, and one does
  /// not tell the length of the whole.
  int64_t sequence_length = -1;
};
using PlanContextRef = std::shared_ptr<PlanContext>;

/// Why the module cannot have this style; "" when it can.
std::string fault_of(Module& module, const Style& style);
/// Parameters that the style says something about.
std::vector<ParameterCut> cuts_of(Module& module, const Style& style);
/// Replaces the module's compute or adds its hook. Before the parameters are cut: it asks for their
/// whole sizes. `is_prepared`: an enclosing module's kPrepareInput has moved the input already.
void install_style(Module& module, const Style& style, const PlanContextRef& context,
                   bool is_prepared);

}  // namespace muster::parallel
