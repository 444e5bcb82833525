#pragma once
/// Chooses how the tensors of a call must lie so that ranks can run it on their pieces.
///
/// Pure: sizes, placements and plain arguments decide, never data or the rank, so all ranks choose
/// alike. Per mesh axis the cheapest fitting rule of the operator wins; all-replicated always fits.
/// A choice is checked by inferring the local results at every coordinate of the mesh.

#include <deque>
#include <string>

#include "core/dispatch/op_table.h"
#include "dist/tensor/dtensor.h"

namespace muster {

/// One tensor of a call; lists are flattened.
struct RuleInput {
  size_t argument = 0;  ///< position in the schema
  size_t pattern = 0;   ///< which tensor argument of the schema, hence which pattern of a rule
  DimVector sizes;      ///< global
  DimVector strides;
  DType dtype = kDefaultDType;
  std::vector<Placement> placements;
  bool is_plain = false;    ///< a number or one-element tensor: replicated, never moved
  bool is_written = false;  ///< never redistributed
};

struct CallLayout {
  std::vector<std::vector<Placement>> inputs;  ///< one per RuleInput
  std::vector<TensorSpec> outputs;             ///< global
  std::vector<std::vector<Placement>> output_placements;
  bool localize_size = false;    ///< the argument "size" must be that of the local result
  bool fills_box = false;        ///< `global_sizes` and `box_start` tell which piece is drawn
  bool sizes_from_data = false;  ///< all replicated; outputs are known only after the call
};

/// `args` are the call's arguments with global metadata tensors in place of DTensors.
/// @error kInvalidArgument a written tensor would have to move; as the operator's shape rule
CallLayout choose_layout(const Op& op, Args args, const std::vector<RuleInput>& inputs,
                         const DTensorSpec& any);

/// The arguments with the tensors replaced, in flattened order. Valid while this object lives.
class ReplacedArgs {
 public:
  ReplacedArgs(Args args, std::vector<Tensor> tensors);
  [[nodiscard]] Args args() const { return values_; }
  [[nodiscard]] std::vector<Tensor>& tensors() { return tensors_; }
  /// Puts other ints in the argument `name`.
  void set_ints(const Op& op, std::string_view name, DimVector ints);

 private:
  std::vector<Tensor> tensors_;
  std::vector<Value> values_;
  std::deque<DimVector> ints_;
};

}  // namespace muster
