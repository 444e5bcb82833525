#pragma once
/// Predicts what sharded training keeps in memory on a rank, and what the most is. Pure.
///
/// The state is parameters, gradients and moments of this rank's rows; on top come the groups that
/// are gathered at a time, their whole gradients, and the buffers of one reduction. A step is gone
/// through event by event, so the peak has a place. Not counted: activations, which depend on the
/// batch, and what operators use for a moment.

#include <cstdint>
#include <string>
#include <vector>

#include "core/base/units.h"
#include "core/tensor/dtype.h"
#include "fsdp/options.h"

namespace muster::fsdp {

/// One parameter, as what is gathered: rows of the same size.
struct ParamShape {
  std::string name;
  int64_t rows = 1;
  int64_t row_numel = 1;
  bool requires_grad = true;
};

/// What one group holds on a rank while it lives through a step, in bytes.
struct GroupMemory {
  std::string name;
  std::vector<ParamShape> params;
  int64_t shard = 0;             ///< this rank's rows, kept
  int64_t cast = 0;              ///< copy of them that is sent; 0 when they are sent as they are
  int64_t gathered = 0;          ///< whole parameters; 0 where a gather takes no memory
  int64_t gathered_item = 4;     ///< of an element of a whole parameter
  int64_t whole_gradients = 0;   ///< of those that want one
  int64_t kept_gradients = 0;    ///< the same between microbatches, in the reduce dtype
  int64_t reduce_input = 0;      ///< padded rows for all ranks
  int64_t reduce_output = 0;     ///< padded rows of this rank
  int64_t pack_copy = 0;         ///< largest gradient in the reduce dtype, where it is another
  int64_t sharded_gradient = 0;  ///< what stays of it until the optimizer's step
  bool reshards = true;          ///< freed after forward, gathered again in backward

  /// Of one parameter, whole.
  [[nodiscard]] int64_t largest_gradient() const;
};

/// `dtype` is the parameters'; `group_rank` of the `world` ranks that share them out.
GroupMemory group_memory(std::string name, std::vector<ParamShape> params, DType dtype,
                         const MixedPrecision& mixed_precision, int world, int group_rank,
                         bool reshards);

struct MemoryOptions {
  int64_t moments = 2;       ///< tensors that the optimizer keeps for each parameter, of its dtype
  int prefetch = 0;          ///< as in Options
  bool accumulates = false;  ///< microbatches before the last one leave whole gradients behind
  /// Bytes of a whole gradient of the root: of one in two parts that are added up, as a tied
  /// embedding has it, and of one that comes when all blocks are done, as an untied one has it.
  int64_t summed = 0;
  int64_t late = 0;
};

struct MemoryPlan {
  Bytes parameters;  ///< state: this rank's rows
  Bytes gradients;
  Bytes moments;
  Bytes most_gathered;  ///< most whole parameters at once
  /// Most at once on the heap and in the arena for communication. They do not share memory, so the
  /// rank needs the sum; where a backend has no arena it needs less.
  Bytes heap_peak;
  Bytes arena_peak;
  std::string peak_at;  ///< where the heap is fullest: "reduction of h.0"
  /// The largest single buffer, and whose it is.
  Bytes largest;
  std::string largest_is;  ///< "reduce input of Gpt (wte.weight 147 MiB, ..)"

  [[nodiscard]] Bytes state() const noexcept { return parameters + gradients + moments; }
  [[nodiscard]] Bytes peak() const noexcept { return heap_peak + arena_peak; }
  /// The lines of a table.
  [[nodiscard]] std::string describe() const;
};

/// `groups` in the order of forward, the root last, as Handle::groups() gives them.
MemoryPlan plan_memory(const std::vector<GroupMemory>& groups, const MemoryOptions& options = {});

}  // namespace muster::fsdp
