#include "dist/backend/gloo/gloo_backend.h"

#include <fmt/format.h>

#include "dist/backend/gloo/group.h"

namespace muster {

Result<std::unique_ptr<GlooBackend>> GlooBackend::open(std::shared_ptr<wire::Mesh> mesh,
                                                       GroupMembers members, Deadline deadline) {
  const std::shared_ptr<wire::Channel> channel = mesh->channel_of(members.identity);
  Result<void> opened = channel->open(members.global_ranks, mesh->global_rank(), deadline);
  if (!opened.ok()) {
    mesh->close_channel(channel->id());
    return std::move(
        opened.error().add_context(fmt::format("while opening group {}", members.name)));
  }
  auto group = std::make_shared<Group>(channel, std::move(members));
  channel->attach(group.get());
  return std::unique_ptr<GlooBackend>(new GlooBackend(std::move(mesh), std::move(group)));
}

Result<std::unique_ptr<GlooBackend>> GlooBackend::open_world(wire::MeshOptions options,
                                                             Deadline deadline) {
  GroupMembers world = GroupMembers::world(options.global_rank, options.world_size);
  return open(MUSTER_TRY(wire::Mesh::open(std::move(options), deadline)), std::move(world),
              deadline);
}

GlooBackend::~GlooBackend() {
  group_->close();
  mesh_->close_channel(group_->channel().id());
}

std::shared_ptr<Work> GlooBackend::launch(CollectiveRequest request) {
  return group_->launch(std::move(request));
}

void GlooBackend::abort(const std::string& reason) { group_->abort(reason); }

Result<std::unique_ptr<Backend>> GlooBackend::subgroup(GroupMembers members, Deadline deadline) {
  return std::unique_ptr<Backend>(MUSTER_TRY(open(mesh_, std::move(members), deadline)));
}
}  // namespace muster
