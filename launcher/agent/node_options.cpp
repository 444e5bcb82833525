#include "launcher/agent/node_options.h"

#include <fmt/core.h>
#include <unistd.h>

#include <array>

namespace muster {

NodeOptions node_options(const JobSpec& spec) {
  std::array<char, 256> host{};
  if (::gethostname(host.data(), host.size() - 1) != 0) host = {"?"};
  return {.rdzv_id = spec.rendezvous.id,
          .min_nodes = spec.policy.nodes.min_nodes,
          .max_nodes = spec.policy.nodes.max_nodes,
          .max_restarts = spec.policy.max_restarts,
          .job = spec.job,
          .name = fmt::format("{}:{}", host.data(), ::getpid()),
          .local_world_size = spec.local_world_size,
          .role = spec.role,
          .wanted_rank = spec.rendezvous.node_rank};
}

NodePlace single_node_place(int local_world_size) {
  return {.group_rank = 0,
          .group_world_size = 1,
          .first_rank = 0,
          .world_size = local_world_size,
          .role_first_rank = 0,
          .role_world_size = local_world_size};
}

}  // namespace muster
