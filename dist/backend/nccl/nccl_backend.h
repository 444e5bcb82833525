#pragma once
/// Collectives of CUDA tensors by NCCL: one device a rank, several hosts.
///
/// NCCL's messages carry no contract, so ranks agree on each operation through the store first
/// (dist/group/agreed); only then is it enqueued, and it has ended when wait() returns. NCCL opens
/// ports of its own, which do not know the job's token.

#include <memory>
#include <string>
#include <vector>

#include "dist/group/backend.h"
#include "dist/store/store.h"

namespace muster {

class AgreedGroup;

class NcclBackend final : public Backend {
 public:
  struct Options {
    std::shared_ptr<Store> store;
    int global_rank = 0;
    int world_size = 1;
    int local_rank = 0;  ///< the index of this rank's device
  };

  /// The world of a job. Ranks tell each other what they lack, so all of them give up together.
  /// @collective all ranks @error kFailedPrecondition no CUDA device, or fewer than ranks here;
  /// kTimeout; kPeerLost, kIo, kInternal NCCL failed
  static Result<std::unique_ptr<NcclBackend>> open_world(Options options, Deadline deadline);
  ~NcclBackend() override;

  [[nodiscard]] std::string name() const override { return "nccl"; }
  [[nodiscard]] BackendAbilities abilities() const override {
    return {.survives_peer_death = false, .reduces_in_group_order = false};
  }
  void check(const CollectiveRequest& request) const override;
  [[nodiscard]] std::shared_ptr<Work> launch(CollectiveRequest request) override;
  void abort(const std::string& reason) override;
  /// Memory of the rank's device.
  [[nodiscard]] Allocator& communication_allocator() override;
  [[nodiscard]] Result<std::unique_ptr<Backend>> subgroup(GroupMembers members,
                                                          Deadline deadline) override;

 private:
  NcclBackend(std::shared_ptr<AgreedGroup> group, int device);
  std::shared_ptr<AgreedGroup> group_;
  int device_;
};

}  // namespace muster
