#include "dist/backend/gloo/gloo_backend.h"

#include <fmt/format.h>

#include "dist/backend/gloo/group.h"

namespace muster {

Result<std::unique_ptr<GlooBackend>> GlooBackend::open(std::shared_ptr<wire::Mesh> mesh,
                                                       Options options, Deadline deadline) {
  const std::shared_ptr<wire::Channel> channel =
      mesh->channel_of(options.group_name, options.global_ranks);
  Result<void> opened = channel->open(options.global_ranks, mesh->global_rank(), deadline);
  if (!opened.ok()) {
    mesh->close_channel(channel->id());
    return std::move(
        opened.error().add_context(fmt::format("while opening group {}", options.group_name)));
  }
  auto group = std::make_shared<Group>(channel, std::move(options));
  channel->attach(group.get());
  return std::unique_ptr<GlooBackend>(new GlooBackend(std::move(mesh), std::move(group)));
}

Result<std::unique_ptr<GlooBackend>> GlooBackend::open_world(wire::MeshOptions options,
                                                             Deadline deadline) {
  Options world;
  world.group_rank = options.global_rank;
  for (int rank = 0; rank < options.world_size; ++rank) world.global_ranks.push_back(rank);
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

Result<std::unique_ptr<Backend>> GlooBackend::subgroup(const std::string& group_name,
                                                       const std::vector<int>& group_ranks,
                                                       Deadline deadline) {
  const Options& own = group_->options();
  Options options{.group_name = group_name, .global_ranks = {}, .group_rank = -1};
  for (size_t i = 0; i < group_ranks.size(); ++i) {
    if (group_ranks[i] == own.group_rank) options.group_rank = static_cast<int>(i);
    options.global_ranks.push_back(own.global_ranks[static_cast<size_t>(group_ranks[i])]);
  }
  return std::unique_ptr<Backend>(MUSTER_TRY(open(mesh_, std::move(options), deadline)));
}
}  // namespace muster
