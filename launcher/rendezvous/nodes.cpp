#include "launcher/rendezvous/nodes.h"

#include <fmt/core.h>

#include <algorithm>
#include <map>

namespace muster {
namespace {
using NodePointers = std::vector<const NodeView*>;

constexpr uint64_t kHost = 0;

// Those that are there, whether ready or not; the ones to be preferred first.
NodePointers present_nodes(const std::vector<NodeView>& nodes, const NodesPolicy& policy,
                           TimePoint now) {
  NodePointers present;
  for (const NodeView& node : nodes) {
    if (why_lost(node, policy, now).empty()) present.push_back(&node);
  }
  std::stable_sort(present.begin(), present.end(), [](const NodeView* a, const NodeView* b) {
    if ((a->id == kHost) != (b->id == kHost)) return a->id == kHost;
    if (a->is_in_round != b->is_in_round) return a->is_in_round;
    return a->joined_at < b->joined_at;
  });
  return present;
}

// Seats each node: first those that asked for one, then those that had one, then the rest in order.
NodePointers seat(const NodePointers& chosen) {
  NodePointers seats(chosen.size(), nullptr);
  NodePointers standing = chosen;
  const auto seat_by = [&](auto&& rank_of) {
    std::erase_if(standing, [&](const NodeView* node) {
      const int64_t rank = rank_of(*node);
      if (rank < 0 || rank >= static_cast<int64_t>(seats.size())) return false;
      const NodeView*& place = seats[static_cast<size_t>(rank)];
      if (place != nullptr) return false;
      place = node;
      return true;
    });
  };
  seat_by([](const NodeView& node) { return node.options.wanted_rank; });
  seat_by([](const NodeView& node) {
    return node.options.wanted_rank < 0 ? node.group_rank : int64_t{-1};
  });
  std::stable_sort(standing.begin(), standing.end(), [](const NodeView* a, const NodeView* b) {
    const auto key = [](const NodeView* node) {
      return node->group_rank < 0 ? INT64_MAX : node->group_rank;
    };
    return key(a) < key(b);
  });
  size_t next = 0;
  for (const NodeView* node : standing) {
    while (seats[next] != nullptr) ++next;
    seats[next] = node;
  }
  return seats;
}
}  // namespace

std::string why_lost(const NodeView& node, const NodesPolicy& policy, TimePoint now) {
  if (!node.gone_because.empty()) return node.gone_because;
  if (node.id == kHost || now - node.heard_at < policy.lease) return "";
  return fmt::format("it was silent for {}", format_duration(policy.lease));
}

std::vector<Seat> assign_seats(const std::vector<NodeView>& nodes, const NodesPolicy& policy,
                               TimePoint now) {
  NodePointers chosen = present_nodes(nodes, policy, now);
  std::erase_if(chosen, [](const NodeView* node) { return !node->is_ready; });
  chosen.resize(std::min(chosen.size(), static_cast<size_t>(policy.max_nodes)));
  std::vector<Seat> seats;
  std::map<std::string, int64_t> role_ranks;
  int64_t world_size = 0;
  for (const NodeView* node : seat(chosen)) {
    int64_t& role_rank = role_ranks[node->options.role];
    seats.push_back({.id = node->id,
                     .place = {.group_rank = static_cast<int64_t>(seats.size()),
                               .group_world_size = static_cast<int64_t>(chosen.size()),
                               .first_rank = world_size,
                               .role_first_rank = role_rank}});
    world_size += node->options.local_world_size;
    role_rank += node->options.local_world_size;
  }
  for (Seat& taken : seats) {
    const auto node = std::find_if(nodes.begin(), nodes.end(), [&](const NodeView& candidate) {
      return candidate.id == taken.id;
    });
    taken.place.world_size = world_size;
    taken.place.role_world_size = role_ranks[node->options.role];
  }
  return seats;
}

Forming form_round(const std::vector<NodeView>& nodes, const NodesPolicy& policy,
                   TimePoint forming_since, bool is_first, TimePoint now) {
  const NodePointers present = present_nodes(nodes, policy, now);
  Forming forming;
  std::vector<TimePoint> joined;
  for (const NodeView* node : present) {
    if (node->is_ready) {
      joined.push_back(node->joined_at);
    } else if (node->is_in_round && forming.reason.empty()) {
      forming.reason = fmt::format("wait: node {} ends its workers", node->options.name);
    }
  }
  if (!forming.reason.empty()) return forming;
  const auto least = static_cast<size_t>(policy.min_nodes);
  const auto most = static_cast<size_t>(policy.max_nodes);
  if (joined.size() >= most) {
    forming.is_complete = true;
  } else if (joined.size() < least) {
    const TimePoint limit = forming_since + policy.join_limit;
    forming.is_hopeless = now >= limit;
    forming.reason = forming.is_hopeless
                         ? fmt::format("{} of {} nodes were there after {}", joined.size(), least,
                                       format_duration(policy.join_limit))
                         : fmt::format("wait: {} of {} nodes are there", joined.size(), least);
    forming.ask_again = limit;
  } else {
    // The last call begins when there are enough.
    std::sort(joined.begin(), joined.end());
    const TimePoint limit = joined[least - 1] + policy.last_call;
    forming.is_complete = !is_first || now >= limit;
    forming.reason = fmt::format("wait: last call, {} of at most {} nodes are there", joined.size(),
                                 policy.max_nodes);
    forming.ask_again = limit;
  }
  return forming;
}

std::string why_unfit(const NodeOptions& host, const NodeOptions& node) {
  const auto text_of_nodes = [](const NodeOptions& options) {
    return fmt::format("{}:{}", options.min_nodes, options.max_nodes);
  };
  if (!host.rdzv_id.empty() || !node.rdzv_id.empty()) {
    if (host.rdzv_id != node.rdzv_id) {
      return fmt::format("--rdzv-id must be that of the job; the host has \"{}\", {} has \"{}\"",
                         host.rdzv_id, node.name, node.rdzv_id);
    }
  }
  if (text_of_nodes(host) != text_of_nodes(node)) {
    return fmt::format("--nnodes must be the same on all nodes; the host has {}, {} has {}",
                       text_of_nodes(host), node.name, text_of_nodes(node));
  }
  if (host.max_restarts != node.max_restarts) {
    return fmt::format("--max-restarts must be the same on all nodes; the host has {}, {} has {}",
                       host.max_restarts, node.name, node.max_restarts);
  }
  if (host.job != node.job) {
    return fmt::format("all nodes must run the same; the host has {}, {} has {}", host.job,
                       node.name, node.job);
  }
  if (node.local_world_size < 1 || node.local_world_size > (1 << 20)) {
    return fmt::format("--nproc-per-node must be from 1 to {}; {} has {}", 1 << 20, node.name,
                       node.local_world_size);
  }
  return "";
}

std::string why_rank_taken(const std::vector<NodeView>& nodes, const NodeOptions& node) {
  for (const NodeView& other : nodes) {
    if (node.wanted_rank >= 0 && other.options.wanted_rank == node.wanted_rank &&
        other.gone_because.empty()) {
      return fmt::format("--node-rank must differ between nodes; {} and {} both have {}",
                         other.options.name, node.name, node.wanted_rank);
    }
  }
  return "";
}

}  // namespace muster
