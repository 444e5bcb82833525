#pragma once
/// Collectives of ranks on one host through shared memory: peers' buffers are read in place.
///
/// Tensors that live in communication_allocator()'s arena are used where they are; others are
/// staged through it. Reductions run in rank order, so results do not depend on timing. An
/// operation makes progress inside wait(), or on the group's own thread when it was launched with
/// async_op.

#include <memory>

#include "dist/backend/shm/context.h"
#include "dist/group/backend.h"

namespace muster {

class ShmBackend final : public Backend {
 public:
  /// Opens a group over an open context; exchanges the places of control blocks through the store.
  /// @collective all members @error kTimeout, kPeerLost
  static Result<std::unique_ptr<ShmBackend>> open(std::shared_ptr<shm::Context> context,
                                                  GroupMembers members, Deadline deadline);
  /// The usual way: a context and its world group.
  static Result<std::unique_ptr<ShmBackend>> open_world(shm::Context::Options options,
                                                        Deadline deadline);
  ~ShmBackend() override;

  [[nodiscard]] std::string name() const override { return "shm"; }
  [[nodiscard]] BackendAbilities abilities() const override {
    return {.survives_peer_death = true, .shares_memory = true};
  }
  [[nodiscard]] std::shared_ptr<Work> launch(CollectiveRequest request) override;
  void abort(const std::string& reason) override;
  [[nodiscard]] Allocator& communication_allocator() override;
  [[nodiscard]] Result<std::shared_ptr<std::byte>> share(int64_t nbytes,
                                                         Deadline deadline) override;
  [[nodiscard]] Result<std::unique_ptr<Backend>> subgroup(GroupMembers members,
                                                          Deadline deadline) override;

  class Group;  // the state that pending works share

 private:
  explicit ShmBackend(std::shared_ptr<Group> group) : group_(std::move(group)) {}
  std::shared_ptr<Group> group_;
  int num_shared_ = 0;  // calls of share()
};

}  // namespace muster
