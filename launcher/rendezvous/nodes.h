#pragma once
/// The nodes of a job: who is there, who takes part in the next round, who gets which ranks.
///
/// Pure functions of what the host knows. A node keeps its place over rounds as long as the number
/// of nodes allows; the host's own node comes first unless --node-rank says otherwise.

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "core/base/time.h"
#include "launcher/rendezvous/messages.h"

namespace muster {

/// How many nodes a job has, and how long they are waited for.
struct NodesPolicy {
  int min_nodes = 1;
  int max_nodes = 1;
  Duration join_limit = 600s;  ///< for min_nodes to be there
  Duration last_call = 1s;     ///< for more of them, before the first round only
  Duration lease = 5s;         ///< a node that is silent for longer counts as lost
};

/// One node as the host sees it.
struct NodeView {
  uint64_t id = 0;  ///< 0 is the host's own
  NodeOptions options;
  TimePoint joined_at{};
  TimePoint heard_at{};        ///< the latest word of it; the host's own is always heard
  bool is_ready = true;        ///< nothing of an earlier round runs there
  bool is_in_round = false;    ///< takes part in the current round, or did in the one that ended
  int64_t group_rank = -1;     ///< in its latest round
  int64_t first_rank = 0;      ///< likewise
  std::string gone_because{};  ///< its connection is closed, or it left; "" while it is there
};

/// Why a node counts as lost at `now`; "" while it does not.
std::string why_lost(const NodeView& node, const NodesPolicy& policy, TimePoint now);

/// A node's place in a round.
struct Seat {
  uint64_t id = 0;
  NodePlace place;
};

/// The places of the next round by group rank: at most max_nodes of those that are ready and there.
/// Nodes of the latest round go before newcomers, so that none of these displaces one of them.
std::vector<Seat> assign_seats(const std::vector<NodeView>& nodes, const NodesPolicy& policy,
                               TimePoint now);

/// Whether a round can begin.
struct Forming {
  bool is_complete = false;
  bool is_hopeless = false;            ///< the time for joining is over
  std::string reason;                  ///< for people
  std::optional<TimePoint> ask_again;  ///< the answer changes at this time by itself
};

/// `forming_since` is when the latest round ended, or the job began; `is_first` before any round.
Forming form_round(const std::vector<NodeView>& nodes, const NodesPolicy& policy,
                   TimePoint forming_since, bool is_first, TimePoint now);

/// What a newcomer says unlike the host, with both values; "" when it fits.
std::string why_unfit(const NodeOptions& host, const NodeOptions& node);

/// A node that wants a --node-rank that another has; "" when there is none.
std::string why_rank_taken(const std::vector<NodeView>& nodes, const NodeOptions& node);

}  // namespace muster
