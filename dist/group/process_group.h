#pragma once
/// ProcessGroup: ordered launches on a Backend, with a contract check, a flight recorder and abort.
///
/// Every call is numbered and carries a hash of what all ranks must agree on (operation, reduce op,
/// root, dtype, shape, call order); a rank that does something else is named with both call sites.
/// Ranks are group ranks throughout. One thread launches on a group at a time.

#include <functional>
#include <map>
#include <memory>
#include <source_location>
#include <string>
#include <string_view>
#include <vector>

#include "dist/group/backend.h"
#include "dist/group/flight_recorder.h"

namespace muster {

/// Peers that one operation has waited for longer than the group finds right.
struct SlowPeers {
  std::vector<int> global_ranks;
  std::string operation;  ///< as WorkDescriptor::describe()
  Duration waited{0};
};

class ProcessGroup {
 public:
  struct Options {
    std::string name = "world";      ///< for messages
    std::string identity = "world";  ///< as the backend's GroupMembers::identity
    int group_rank = 0;
    std::vector<int> global_ranks;  ///< of all members, in group order
    Duration timeout = 30s;         ///< default deadline of run()
    /// run() calls `on_slow` once for an operation that waits longer than this, and waits on;
    /// subgroups inherit both.
    Duration slow_after = Duration::max();
    std::function<void(const SlowPeers&)> on_slow;
  };

  ProcessGroup(Options options, std::unique_ptr<Backend> backend);
  ~ProcessGroup();
  ProcessGroup(const ProcessGroup&) = delete;
  ProcessGroup& operator=(const ProcessGroup&) = delete;

  [[nodiscard]] int group_rank() const noexcept { return options_.group_rank; }
  [[nodiscard]] int world_size() const noexcept {
    return static_cast<int>(options_.global_ranks.size());
  }
  [[nodiscard]] int global_rank() const {
    return options_.global_ranks[static_cast<size_t>(group_rank())];
  }
  [[nodiscard]] const std::vector<int>& global_ranks() const noexcept {
    return options_.global_ranks;
  }
  /// The rank in this group of a rank of the job.
  /// @error throws kInvalidArgument naming the group's members if it is none of them
  [[nodiscard]] int group_rank_of(int global_rank) const;
  [[nodiscard]] const std::string& name() const noexcept { return options_.name; }
  [[nodiscard]] Duration timeout() const noexcept { return options_.timeout; }
  [[nodiscard]] Backend& backend() noexcept { return *backend_; }
  [[nodiscard]] Allocator& communication_allocator() { return backend_->communication_allocator(); }

  using Site = std::source_location;
  using WorkPtr = std::shared_ptr<Work>;

  // All calls below: @collective every rank of the group, in the same order. Tensors are contiguous
  // and belong to the operation until the Work was waited for. `async_op` lets the operation
  // progress in the background; without it, it runs inside wait(). A wrong argument throws
  // kInvalidArgument before anything is launched.

  // `label` says in messages what the operation is for; it is part of what ranks must agree on, so
  // that equal operations of different purposes are not taken for each other.

  /// tensor := op over all ranks' tensors, in place. kAvg: floating only.
  WorkPtr all_reduce(const Tensor& tensor, ReduceOp op = ReduceOp::kSum, bool async_op = false,
                     Site site = Site::current(), std::string_view label = {});
  /// @shape output [W * n, ...] or [W, n, ...] for input [n, ...]: rank r's input is the r-th piece
  WorkPtr all_gather_into_tensor(const Tensor& output, const Tensor& input, bool async_op = false,
                                 Site site = Site::current());
  /// @shape P outputs per rank, rank by rank: those of rank r hold its input cut in order; sizes
  /// may differ, so several parameters travel in one call
  WorkPtr all_gather(const std::vector<Tensor>& outputs, const Tensor& input, bool async_op = false,
                     Site site = Site::current(), std::string_view label = {});
  /// @shape input [W * n, ...] or [W, n, ...] for output [n, ...]: rank r receives the r-th piece
  /// reduced
  WorkPtr reduce_scatter_tensor(const Tensor& output, const Tensor& input,
                                ReduceOp op = ReduceOp::kSum, bool async_op = false,
                                Site site = Site::current(), std::string_view label = {});
  WorkPtr broadcast(const Tensor& tensor, int group_src, bool async_op = false,
                    Site site = Site::current());
  WorkPtr reduce(const Tensor& tensor, int group_dst, ReduceOp op = ReduceOp::kSum,
                 bool async_op = false, Site site = Site::current());
  /// `outputs` is empty except on group_dst.
  WorkPtr gather(const std::vector<Tensor>& outputs, const Tensor& input, int group_dst,
                 bool async_op = false, Site site = Site::current());
  /// `inputs` is empty except on group_src.
  WorkPtr scatter(const Tensor& output, const std::vector<Tensor>& inputs, int group_src,
                  bool async_op = false, Site site = Site::current());
  /// Piece j of the inputs goes to rank j; sizes may differ and may be 0.
  WorkPtr all_to_all(const std::vector<Tensor>& outputs, const std::vector<Tensor>& inputs,
                     bool async_op = false, Site site = Site::current());
  using Splits = const std::vector<int64_t>&;
  /// The same along the first dim of two tensors: `input_splits[j]` rows go to rank j, and
  /// `output_splits[j]` rows come from it; empty splits mean equal pieces.
  WorkPtr all_to_all_single(const Tensor& output, const Tensor& input, Splits output_splits = {},
                            Splits input_splits = {}, bool async_op = false,
                            Site site = Site::current());
  WorkPtr barrier(bool async_op = false, Site site = Site::current(), std::string_view label = {});

  /// Memory that all ranks see, zero-filled; null where the backend has none in common. Ranks agree
  /// on `nbytes` and on `label`, which says what for. @blocks @error throws as run() does
  [[nodiscard]] std::shared_ptr<std::byte> share(int64_t nbytes, std::string_view label,
                                                 Site site = Site::current());
  /// An all_gather whose result, `whole`, lies in such memory, where each rank has written its own
  /// part: nothing is moved; once it was waited for, the parts of all are there.
  WorkPtr all_gather_in_place(const Tensor& whole, bool async_op = false,
                              Site site = Site::current(), std::string_view label = {});
  /// reduce_scatter_tensor of pieces that lie apart, whose sizes may differ: `inputs` are P tensors
  /// for each rank, rank by rank, and `outputs` the P of this rank, reduced. For ranks that share
  /// memory: what is a rank's own is read where it lies.
  WorkPtr reduce_scatter(const std::vector<Tensor>& outputs, const std::vector<Tensor>& inputs,
                         ReduceOp op = ReduceOp::kSum, bool async_op = false,
                         Site site = Site::current(), std::string_view label = {});

  /// Point to point; numbered per ordered pair of ranks, independent of the collectives. A send is
  /// buffered: it completes without waiting for the receiver.
  WorkPtr send(const Tensor& tensor, int group_dst, bool async_op = false,
               Site site = Site::current());
  WorkPtr recv(const Tensor& tensor, int group_src, bool async_op = false,
               Site site = Site::current());
  /// The same, where both sides must also agree on `tag`, which says what the message is.
  /// @error kMismatch from wait(): the other side's next message has another tag
  WorkPtr send_tagged(const Tensor& tensor, int group_dst, uint64_t tag, bool async_op = false,
                      Site site = Site::current());
  WorkPtr recv_tagged(const Tensor& tensor, int group_src, uint64_t tag, bool async_op = false,
                      Site site = Site::current());

  /// Waits with the group's timeout and throws what went wrong, with the last operations as
  /// context.
  void run(const WorkPtr& work);

  /// A group of some ranks (given as ranks of this group, in the new order), with its own
  /// numbering. Each call makes another group, also under the same name.
  /// @collective called by exactly these ranks @error kTimeout, kPeerLost
  Result<std::unique_ptr<ProcessGroup>> subgroup(const std::string& name,
                                                 const std::vector<int>& group_ranks,
                                                 Deadline deadline);

  /// Ends all operations of this rank with kAborted. @thread any
  void abort(const std::string& reason);

  [[nodiscard]] const FlightRecorder& recorder() const noexcept { return recorder_; }
  /// Collectives launched so far: for tests that count communication.
  [[nodiscard]] uint64_t num_launched(CollectiveKind kind) const noexcept;

 private:
  WorkPtr launch(CollectiveKind kind, ReduceOp op, int peer, std::vector<Tensor> outputs,
                 std::vector<Tensor> inputs, const Tensor* agreed, uint64_t extra_contract,
                 bool async_op, const Site& site, std::string_view label = {});
  void check_peer(CollectiveKind kind, int peer) const;
  [[nodiscard]] Result<GroupMembers> members_of(const std::string& name,
                                                const std::vector<int>& group_ranks) const;

  Options options_;
  std::unique_ptr<Backend> backend_;
  FlightRecorder recorder_;
  uint64_t name_hash_;
  uint64_t seq_ = 0;
  std::vector<uint64_t> sent_, received_;  // per peer
  std::vector<uint64_t> launched_;         // per kind
  std::map<std::string, int> openings_;    // of subgroups, per name and members
};

}  // namespace muster
