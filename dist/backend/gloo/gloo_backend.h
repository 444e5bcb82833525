#pragma once
/// Collectives of ranks on one or several hosts over TCP, by Gloo's algorithms.
///
/// Small operations travel inside the contract message and end on the thread that receives the last
/// one; larger ones run on the group's own thread once all ranks have agreed. Reductions run in
/// group order, so results equal those of shm to the last bit. Waits have deadlines, a dead peer is
/// named, and connections are proved (wire/mesh.h); what travels is not encrypted.

#include <memory>
#include <string>
#include <vector>

#include "dist/backend/gloo/wire/mesh.h"
#include "dist/group/backend.h"

namespace muster {

class GlooBackend final : public Backend {
 public:
  /// Opens a group over an open mesh. @collective all members @error kTimeout, kPeerLost
  static Result<std::unique_ptr<GlooBackend>> open(std::shared_ptr<wire::Mesh> mesh,
                                                   GroupMembers members, Deadline deadline);
  /// The usual way: a mesh and its world group.
  static Result<std::unique_ptr<GlooBackend>> open_world(wire::MeshOptions options,
                                                         Deadline deadline);
  ~GlooBackend() override;

  [[nodiscard]] std::string name() const override { return "gloo"; }
  [[nodiscard]] BackendAbilities abilities() const override {
    return {.survives_peer_death = true};
  }
  [[nodiscard]] std::shared_ptr<Work> launch(CollectiveRequest request) override;
  void abort(const std::string& reason) override;
  [[nodiscard]] Allocator& communication_allocator() override { return cpu_allocator(); }
  [[nodiscard]] Result<std::unique_ptr<Backend>> subgroup(GroupMembers members,
                                                          Deadline deadline) override;

  class Group;  // the state that pending works share

 private:
  GlooBackend(std::shared_ptr<wire::Mesh> mesh, std::shared_ptr<Group> group)
      : mesh_(std::move(mesh)), group_(std::move(group)) {}
  std::shared_ptr<wire::Mesh> mesh_;
  std::shared_ptr<Group> group_;
};

}  // namespace muster
