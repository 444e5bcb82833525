#pragma once
/// Backend: moves the bytes of one group's operations. ProcessGroup checks, numbers and records.
///
/// A backend executes requests of one group in launch order. It compares the contract hash with the
/// peers' in a header or handshake that it needs anyway. What it cannot do it says by abilities(),
/// before anything is launched. No backend knows another.

#include <cstddef>
#include <memory>
#include <string>
#include <vector>

#include "core/tensor/tensor.h"
#include "dist/group/work.h"

namespace muster {

/// What a backend can do; asked, never tried.
struct BackendAbilities {
  bool send_recv = true;
  bool all_to_all = true;
  bool survives_peer_death = false;  ///< names a killed peer instead of waiting for the deadline
  /// Reduces in group order, half types in f32, and keeps nan: the bits that shm computes.
  bool reduces_in_group_order = true;
  bool shares_memory = false;  ///< share() gives memory
};

/// One operation, validated. Tensors are contiguous and stay untouched by the caller until waited.
struct CollectiveRequest {
  WorkDescriptor descriptor;
  /// What this rank contributes. Empty for an all_gather in memory of share(): nothing is moved.
  std::vector<Tensor> inputs;
  std::vector<Tensor> outputs;  ///< where results go; may be the inputs themselves
  int root = kNoPeer;           ///< group rank
  bool async_op = false;        ///< progress without a waiting caller
};

/// "group rank 1 (global 3)", as every message calls a member.
[[nodiscard]] std::string rank_name(int group_rank, int global_rank);

/// Who a group is, as its backend knows it.
struct GroupMembers {
  std::string name = "world";      ///< for messages; several groups of a job may have it
  std::string identity = "world";  ///< the same on all members, and of no other group of the job
  std::vector<int> global_ranks;   ///< in group order
  int group_rank = 0;              ///< of this process

  [[nodiscard]] static GroupMembers world(int global_rank, int world_size);
  [[nodiscard]] int size() const noexcept { return static_cast<int>(global_ranks.size()); }
  [[nodiscard]] int global_rank_of(int rank) const {
    return global_ranks[static_cast<size_t>(rank)];
  }
  [[nodiscard]] int own_global_rank() const { return global_rank_of(group_rank); }
  [[nodiscard]] std::string name_of(int rank) const {
    return rank_name(rank, global_rank_of(rank));
  }
  [[nodiscard]] std::string own_name() const { return name_of(group_rank); }
};

class Backend {
 public:
  virtual ~Backend() = default;
  Backend() = default;
  Backend(const Backend&) = delete;
  Backend& operator=(const Backend&) = delete;

  /// "shm", "gloo", "fake".
  [[nodiscard]] virtual std::string name() const = 0;
  [[nodiscard]] virtual BackendAbilities abilities() const = 0;
  /// Throws what this backend cannot do, before the operation is numbered; `request` has no number
  /// yet. Without an override: tensors of a device are refused. @error kInvalidArgument,
  /// kUnimplemented
  virtual void check(const CollectiveRequest& request) const;
  /// Queues the request. Failures come out of wait().
  [[nodiscard]] virtual std::shared_ptr<Work> launch(CollectiveRequest request) = 0;
  /// Ends all pending and later operations with kAborted, on this rank at once.
  /// @thread any
  virtual void abort(const std::string& reason) = 0;
  /// Memory that peers reach without a copy; the plain allocator where there is none such.
  [[nodiscard]] virtual Allocator& communication_allocator() = 0;
  /// Memory that all members see, zero-filled: what one writes, the others read. It goes when the
  /// last of them lets go. Null where members have no memory in common.
  /// @collective all members, in the same order @error kOutOfMemory, kTimeout, kPeerLost
  [[nodiscard]] virtual Result<std::shared_ptr<std::byte>> share(int64_t nbytes, Deadline deadline);
  /// A group of some of this group's ranks. @collective called by exactly these ranks
  /// @error kTimeout, kPeerLost
  [[nodiscard]] virtual Result<std::unique_ptr<Backend>> subgroup(GroupMembers members,
                                                                  Deadline deadline) = 0;
};

}  // namespace muster
