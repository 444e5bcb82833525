#pragma once
/// ParamGroup: parameters that are gathered, freed and reduced together.
///
/// sharded -> gathering -> unsharded -> (reducing) -> sharded. Each rank keeps one piece of rows
/// per parameter, all pieces in one flat buffer that peers read in place. Where ranks share memory
/// (one host) the buffer is the parameters of all ranks: a gather moves nothing, it waits until all
/// have come, and so does reshard(), so that a rank writes its rows only when nobody reads them.
/// Gathered parameters keep their identity: their storage is freed and comes back, so what autograd
/// saved stays valid. Padding exists only inside the reduce buffer. Every collective carries the
/// group's name and how often it was gathered: ranks whose models go different ways are told so.

#include <memory>
#include <string>
#include <vector>

#include "core/autograd/node.h"
#include "core/nn/module.h"
#include "dist/tensor/local_shard.h"
#include "fsdp/memory.h"
#include "fsdp/options.h"

namespace muster::fsdp {

/// One parameter of a group.
struct ShardedParam {
  std::string name;            ///< dotted, from the outermost module that was sharded
  std::vector<Tensor*> slots;  ///< where the module holds it; several when shared
  InitSpec init;
  bool requires_grad = true;
  bool is_initialized = false;  ///< false after meta construction, until values are written
  DimVector sizes;              ///< of the whole parameter, over all ranks
  DimVector gathered_sizes;     ///< of what is gathered: the tensor parallel piece, else the whole
  DTensorSpec spec;             ///< of `local`: axes of tensor parallelism first, then this one
  std::vector<LocalBox> boxes;  ///< what `local` is of the whole: one box, or more (fused weights)
  bool has_partial_gradient = false;  ///< gradients are summed over the tensor parallel axis
  bool has_arrived = false;           ///< its gradient came since the last reduction
  Tensor sharded;                     ///< DTensor; registered except in forward and backward
  Tensor local;                       ///< its piece: a leaf, view of the flat buffer
  int64_t first_element = 0;          ///< of the whole, in a flat buffer that ranks share
  Tensor unsharded;    ///< gathered; registered in forward and backward; memory comes and goes
  Tensor accumulated;  ///< whole gradient of earlier microbatches, where it has another dtype
  Tensor partial;      ///< rows that are reduced over the shards, not yet over the replicas
};

class ParamGroup {
 public:
  enum class State : uint8_t { kSharded, kGathering, kUnsharded };

  /// Takes the parameters over: copies this rank's rows and puts sharded tensors into the slots.
  /// Parameters on the meta device get memory for this rank's rows, uninitialised.
  /// Pieces of tensor parallelism (dist/tensor/local_shard.h) are cut further along the mesh axis.
  /// @error kInvalidArgument mixed dtypes, a parameter that is not contiguous, integer parameters,
  /// whole parameters beside pieces
  ParamGroup(std::string name, std::vector<ShardedParam> params, const Options& options);
  ParamGroup(const ParamGroup&) = delete;
  ParamGroup& operator=(const ParamGroup&) = delete;

  /// Its module's path from the outermost module that was sharded, or its kind: for messages.
  [[nodiscard]] const std::string& name() const noexcept { return name_; }
  void set_name(std::string name) { name_ = std::move(name); }
  [[nodiscard]] State state() const noexcept { return state_; }
  [[nodiscard]] std::vector<ShardedParam>& params() noexcept { return params_; }

  /// Starts the gather without waiting. @collective all ranks of the mesh axis
  void start_unshard(bool async_op);
  /// Gathers if needed, waits, and registers whole parameters. @collective as start_unshard
  /// @error kFailedPrecondition a parameter has no values yet; kMismatch another rank does
  /// something else: names both groups and their gathers; what the group's run() throws
  void unshard();
  /// Frees whole parameters and registers sharded ones. Afterwards rows may be written: where ranks
  /// share memory it waits for all, unless gradients were reduced meanwhile.
  /// @collective all ranks of the mesh axis
  void reshard();
  /// Registers sharded parameters while whole ones stay gathered, until the next unshard(): what is
  /// read of a module between its passes is what is trained and saved. Local.
  void show_shards() noexcept;
  /// Gathers are counted from here for messages. Local.
  void begin_pass() noexcept { gathers_of_pass_ = 0; }

  /// True once every parameter that wants a gradient has one since the last reduction.
  [[nodiscard]] bool all_gradients_arrived() const noexcept { return num_arrived_ == num_wanted_; }
  /// Called when a parameter's gradient was accumulated; set by fully_shard.
  void on_gradient(std::function<void()> callback) { on_gradient_ = std::move(callback); }
  /// Reduces the gradients that exist and leaves each rank its rows, added to what is there.
  /// `over_replicas` false: over the shards only, and the rows wait for a later call that reduces
  /// them over the replicas too. Without replicas it makes no difference.
  /// @collective all ranks of the mesh axis
  void reduce_gradients(bool over_replicas = true);
  /// Forgets that gradients arrived, without reducing: they stay whole, in the reduce dtype.
  void keep_gradients_unsharded();

  [[nodiscard]] const Options& options() const noexcept { return options_; }
  /// Bytes that this rank keeps of the parameters.
  [[nodiscard]] int64_t shard_nbytes() const noexcept;
  /// True where ranks share memory: gathers move nothing.
  [[nodiscard]] bool gathers_in_place() const noexcept { return shared_ != nullptr; }
  /// What the group will hold on this rank, for plan_memory().
  [[nodiscard]] GroupMemory memory(bool reshards) const;
  [[nodiscard]] uint64_t num_gathers() const noexcept { return num_gathers_; }

 private:
  void describe(ShardedParam& param, const Tensor& whole) const;
  void make_flat();
  void make_local_pieces(const std::vector<Tensor>& whole);
  void make_unsharded();
  void note_gradient(ShardedParam& param);
  void forget_arrivals() noexcept;
  Tensor take_whole_gradient(ShardedParam& param) const;
  Tensor gather_input();
  ProcessGroup::WorkPtr start_gather(bool async_op);
  void reduce_packed(const std::vector<ShardedParam*>& params, double divisor,
                     const Tensor& received);
  void reduce_pieces(const std::vector<ShardedParam*>& params, double divisor,
                     const Tensor& received);
  Tensor pack_gradients(const std::vector<ShardedParam*>& params, int64_t padded);
  void sum_partial_gradients(const std::vector<ShardedParam*>& params, const Tensor& reduced);
  // False: the rows wait for the replicas.
  bool reduce_over_replicas(const std::vector<ShardedParam*>& params, const Tensor& reduced,
                            bool over_replicas);
  void install_gradient(ShardedParam& param, const Tensor& reduced);
  [[nodiscard]] ReduceOp reduce_op() const noexcept;
  [[nodiscard]] DType reduce_dtype() const noexcept;
  [[nodiscard]] bool reduces_in_place() const noexcept {
    return shared_ != nullptr && reduce_dtype() == gather_dtype_;
  }
  [[nodiscard]] int64_t padded_numel(const ShardedParam& param) const;
  [[nodiscard]] int64_t most_rows(const ShardedParam& param) const;
  [[nodiscard]] ChunkRange own_rows(const ShardedParam& param) const;
  // The ranks that share out the parameters.
  [[nodiscard]] ProcessGroup& group() const {
    return *options_.mesh->group(options_.mesh->num_axes() - 1);
  }
  // The ranks that hold the same rows; null without a replicating axis.
  [[nodiscard]] ProcessGroup* replicas() const {
    return options_.mesh->num_axes() == 2 ? options_.mesh->group(0).get() : nullptr;
  }

  std::string name_;
  std::vector<ShardedParam> params_;
  Options options_;
  DType dtype_ = kDefaultDType;
  DType gather_dtype_ = kDefaultDType;
  State state_ = State::kSharded;
  std::shared_ptr<std::byte> shared_;  // what flat_ lies in, where ranks share memory
  Tensor flat_;  // rows of all parameters: all ranks' where they share memory, else this rank's
  Tensor gather_input_;         // flat_, or its cast; alive while a gather is in flight
  std::vector<Tensor> pieces_;  // rows of every whole parameter by (rank, parameter)
  ProcessGroup::WorkPtr gather_;
  bool may_be_read_ = false;  // peers may be reading this rank's rows
  int num_wanted_ = 0;
  int num_arrived_ = 0;
  uint64_t num_gathers_ = 0;
  uint64_t gathers_of_pass_ = 0;
  std::function<void()> on_gradient_;
};

}  // namespace muster::fsdp
