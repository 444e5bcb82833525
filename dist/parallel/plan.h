#pragma once
/// Tensor parallel plans: styles of layers by module name, applied to a module.
///
/// A plan says per module how its parameters are cut along one mesh axis and where its activations
/// move. parallelize_module() gives every parameter of the module a local piece that describes
/// itself (dist/tensor/local_shard.h), so that sharding, norms and checkpoints follow from
/// placements. Activations stay plain local tensors: the collectives stand in the plan, and an
/// operator between them costs what it costs without it (a DTensor dispatch would add microseconds
/// to each, and rules would have to be searched).
/// @source torch.distributed.tensor.parallel: styles and their meaning

#include <optional>
#include <string>
#include <vector>

#include "core/nn/module.h"
#include "dist/mesh/device_mesh.h"
#include "dist/tensor/local_shard.h"

namespace muster::parallel {

/// How one module takes part.
struct Style {
  enum class Kind : uint8_t {
    kColwise,        ///< Linear: weight and bias S(0), Embedding: weight S(1); output S(-1)
    kRowwise,        ///< Linear: weight S(1), bias R; Embedding: weight S(0); output a partial sum
    kSequence,       ///< parameters R, used on different data by each rank; gradients are summed
    kPrepareInput,   ///< moves the module's input
    kPrepareOutput,  ///< moves the module's output
  };
  Kind kind = Kind::kColwise;
  Placement from;  ///< of the input of a layer; of what kPrepare.. gets
  Placement to;    ///< of the output of a layer; of what kPrepare.. gives
  /// kColwise: the rows of the weight are this many blocks of equal size (q|k|v: 3), each of which
  /// is shared out by itself.
  int parts = 1;
  /// kPrepare.. with `to` replicated: each rank uses the value on its own pieces, so that its
  /// gradient is a sum over ranks.
  bool partial_gradient = false;
};

/// @param input R, or S(1) for sequence shards. Where a kPrepareInput of an enclosing module has
/// made the input, nothing moves: gradients of all users are then reduced once.
Style colwise(Placement input = Placement::replicate(), Placement output = Placement::shard(-1));
/// Colwise, of a weight that holds several blocks of rows one above the other.
Style colwise_blocks(int parts, Placement input = Placement::replicate());
/// @param output R (all-reduce) or S(1) (reduce-scatter)
Style rowwise(Placement output = Placement::replicate(), Placement input = Placement::shard(-1));
/// An embedding by rows of its table; output as of rowwise().
Style rowwise_embedding(Placement output = Placement::replicate());
/// For layers that each rank runs on its own shard of the sequence, or on its own heads.
Style sequence();
/// Gives column-wise layers below a replicated input whose gradient is reduced once.
Style prepare_input(Placement from, Placement to = Placement::replicate(),
                    bool partial_gradient = true);
Style prepare_output(Placement from, Placement to, bool partial_gradient = false);

/// `glob` names modules below the one that is parallelized: "*" stands for one part of a dotted
/// name, "h.*.attn"; "" is the module itself. Several entries may match one module.
struct PlanEntry {
  std::string glob;
  Style style;
};
using Plan = std::vector<PlanEntry>;

/// True when `name` matches: parts are equal, or "*".
bool matches_glob(std::string_view glob, std::string_view name);

/// Cuts the parameters of `module` along `axis` and installs the plan. Parameters that no entry
/// cuts are replicated. Works on meta parameters, and on values that all ranks hold alike.
/// Conversions of dtype and to_empty() come before it, fully_shard() after it. The module calls its
/// layers as layer(x) and learns sizes of activations from them.
/// @error kInvalidArgument before anything is changed, listing every fault: an entry without a
/// match, a style that a layer cannot have, a parameter cut twice; the module is parallelized
/// already
void parallelize_module(Module& module, const MeshRef& axis, const Plan& plan);

/// Gives every parameter of a parallelized module its initial value, by (seed, name, global
/// index): equal to initialising the whole model and cutting it then. Meta parameters get memory.
/// Not for modules under fully_shard(): see fsdp::init_parameters.
void init_parameters(Module& module, uint64_t seed);

/// Heads of attention must come out whole on every rank.
struct HeadCounts {
  int64_t heads = 1;
  int64_t kv_heads = 1;
};
/// @error kInvalidArgument heads or kv heads that `tp` does not divide; names all three
void check_heads(const HeadCounts& counts, int tp);

}  // namespace muster::parallel
