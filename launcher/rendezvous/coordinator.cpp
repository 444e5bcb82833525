#include "launcher/rendezvous/coordinator.h"

#include <algorithm>

#include "core/base/log.h"
#include "launcher/rendezvous/proof.h"

namespace muster {
namespace {
constexpr Duration kHandshakeLimit = 10s;
constexpr size_t kMaxTold = 100;
constexpr int64_t kMaxStrangers = 1024;

// "127.0.0.1:4711" without the port, which differs each time.
std::string host_of(const std::string& address) { return address.substr(0, address.rfind(':')); }
}  // namespace

Coordinator::Coordinator(Link& link, Options options, JobView& view, TimePoint now)
    : link_(link), options_(std::move(options)), view_(view) {
  view_.forming_since = now;
  view_.nodes.push_back({.id = 0, .options = options_.own, .joined_at = now, .heard_at = now});
}

NodeView* Coordinator::find(uint64_t id) {
  const auto found = std::find_if(view_.nodes.begin(), view_.nodes.end(),
                                  [id](const NodeView& node) { return node.id == id; });
  return found == view_.nodes.end() ? nullptr : &*found;
}

void Coordinator::take_events(TimePoint now) {
  for (const LinkEvent& event : link_.take()) {
    switch (event.kind) {
      case LinkEvent::Kind::kOpened:
        peers_[event.peer] = {.address = event.text, .opened_at = now};
        limit_strangers();
        break;
      case LinkEvent::Kind::kMessage:
        take(event.peer, event.message, now);
        break;
      case LinkEvent::Kind::kClosed:
        if (NodeView* node = find(event.peer)) lose(*node, event.text);
        peers_.erase(event.peer);
        break;
      case LinkEvent::Kind::kRefused:
        MUSTER_LOG(kWarn, "{}; the job goes on", event.text);
        break;
    }
  }
}

void Coordinator::take(uint64_t id, const Message& message, TimePoint now) {
  const auto found = peers_.find(id);
  if (found == peers_.end()) return;
  Peer& peer = found->second;
  if (const auto* hello = std::get_if<message::Hello>(&message)) {
    if (peer.stage == Stage::kAwaitsHello) take_hello(id, peer, *hello);
    return;
  }
  if (const auto* join = std::get_if<message::Join>(&message)) {
    if (peer.stage == Stage::kAwaitsJoin) take_join(id, peer, *join, now);
    return;
  }
  NodeView* const node = peer.stage == Stage::kMember ? find(id) : nullptr;
  if (node == nullptr || !node->gone_because.empty()) return;
  node->heard_at = now;
  if (const auto* ended = std::get_if<message::WorkerEnded>(&message)) {
    take_exit(*node, *ended, now);
  } else if (const auto* stopped = std::get_if<message::Stopped>(&message)) {
    if (stopped->generation >= generation_) node->is_ready = true;
  } else if (const auto* failed = std::get_if<message::StartFailed>(&message)) {
    if (failed->generation == generation_ && view_.start_failure.empty()) {
      view_.start_failure = fmt::format("node {}: {}", node->options.name, failed->reason);
      view_.start_failure_status = exit_status(static_cast<ErrorCode>(failed->code));
    }
  } else if (const auto* leave = std::get_if<message::Leave>(&message)) {
    lose(*node, "it left, " + leave->reason);
    link_.close(id);
  } else if (std::holds_alternative<message::Ended>(message)) {
    peer.has_ended = true;
  }
}

void Coordinator::take_hello(uint64_t id, Peer& peer, const message::Hello& hello) {
  if (hello.protocol != message::kProtocol) {
    refuse(id, ErrorCode::kInvalidArgument, "protocol",
           fmt::format("muster must be of one version on all nodes; the host speaks protocol {}, "
                       "the node {}",
                       message::kProtocol, hello.protocol));
    return;
  }
  peer.node_nonce = hello.nonce;
  peer.host_nonce = make_proof_nonce();
  peer.stage = Stage::kAwaitsJoin;
  link_.send(id, message::Challenge{peer.host_nonce});
}

void Coordinator::take_join(uint64_t id, Peer& peer, const message::Join& join, TimePoint now) {
  const std::string proof = node_proof(options_.token, peer.node_nonce, peer.host_nonce);
  if (!is_same_proof(proof, join.proof)) {
    refuse(id, ErrorCode::kFailedPrecondition, "token",
           "the job token must be that of the job; set the same MUSTER_JOB_TOKEN on all nodes");
    return;
  }
  std::string unfit = why_unfit(options_.own, join.node);
  if (unfit.empty()) unfit = why_rank_taken(view_.nodes, join.node);
  if (!unfit.empty()) {
    refuse(id, ErrorCode::kInvalidArgument, unfit, unfit);
    return;
  }
  peer.stage = Stage::kMember;
  link_.trust(id);
  link_.send(id, message::Welcome{host_proof(options_.token, peer.node_nonce, peer.host_nonce),
                                  options_.run_id, options_.policy.lease.count()});
  view_.nodes.push_back({.id = id, .options = join.node, .joined_at = now, .heard_at = now});
  MUSTER_LOG(kInfo, "node {} has joined: {} of at most {} nodes", join.node.name,
             std::count_if(view_.nodes.begin(), view_.nodes.end(),
                           [](const NodeView& node) { return node.gone_because.empty(); }),
             options_.policy.max_nodes);
}

void Coordinator::take_exit(const NodeView& node, const message::WorkerEnded& ended,
                            TimePoint now) {
  const int64_t end = node.first_rank + node.options.local_world_size;
  const bool is_own = ended.global_rank >= node.first_rank && ended.global_rank < end;
  const bool is_known =
      std::any_of(view_.exits.begin(), view_.exits.end(),
                  [&](const RankExit& exit) { return exit.global_rank == ended.global_rank; });
  if (!view_.started || ended.generation != generation_ || !node.is_in_round || !is_own ||
      is_known) {
    return;
  }
  RankExit exit{.global_rank = static_cast<int>(ended.global_rank),
                .exit = {.status = static_cast<int>(ended.status),
                         .signal = static_cast<int>(ended.signal),
                         .oom_killed = ended.oom_killed},
                .at = now - std::max(Duration(0), Duration(ended.age_ns))};
  // In the order of their ends, as far as the network lets it be known.
  const auto later = std::find_if(view_.exits.begin(), view_.exits.end(),
                                  [&](const RankExit& other) { return other.at > exit.at; });
  view_.exits.insert(later, exit);
  if (options_.on_exit) options_.on_exit(node, exit);
}

void Coordinator::refuse(uint64_t id, ErrorCode code, const std::string& kind,
                         const std::string& reason) {
  link_.send(id, message::Refused{static_cast<int64_t>(code), reason});
  link_.close(id);
  const auto peer = peers_.find(id);
  const std::string address = peer == peers_.end() ? "" : peer->second.address;
  if (peer != peers_.end()) peers_.erase(peer);
  if (told_.size() >= kMaxTold || !told_.insert(host_of(address) + " " + kind).second) return;
  MUSTER_LOG(kWarn, "refused an agent at {}: {}; the job goes on", address, reason);
}

void Coordinator::limit_strangers() {
  const auto is_stranger = [](const auto& entry) { return entry.second.stage != Stage::kMember; };
  const auto count = std::count_if(peers_.begin(), peers_.end(), is_stranger);
  if (count <= kMaxStrangers) return;
  // Numbers grow: the first has had the longest time to say who it is.
  refuse(std::find_if(peers_.begin(), peers_.end(), is_stranger)->first, ErrorCode::kRendezvous,
         "many", fmt::format("{} others wait to say who they are", kMaxStrangers));
}

void Coordinator::lose(NodeView& node, const std::string& why) {
  if (node.gone_because.empty()) node.gone_because = why;
}

void Coordinator::expire(TimePoint now) {
  for (NodeView& node : view_.nodes) {
    const std::string lost = why_lost(node, options_.policy, now);
    if (lost.empty() || !node.gone_because.empty()) continue;
    lose(node, lost);
    link_.send(node.id, message::Refused{static_cast<int64_t>(ErrorCode::kPeerLost),
                                         "this node counts as lost: " + lost});
    link_.close(node.id);
  }
}

void Coordinator::beat(TimePoint now) {
  send_to_members(message::Beat{});
  std::vector<uint64_t> late;
  for (const auto& [id, peer] : peers_) {
    if (peer.stage != Stage::kMember && now - peer.opened_at >= kHandshakeLimit) late.push_back(id);
  }
  for (const uint64_t id : late) {
    refuse(id, ErrorCode::kTimeout, "late",
           fmt::format("an agent must say who it is within {}", format_duration(kHandshakeLimit)));
  }
}

NodePlace Coordinator::start(const std::vector<Seat>& seats, message::Start start) {
  generation_ = start.generation;
  NodePlace own;
  std::erase_if(view_.nodes, [](const NodeView& node) { return !node.gone_because.empty(); });
  for (NodeView& node : view_.nodes) {
    const auto seat = std::find_if(seats.begin(), seats.end(),
                                   [&](const Seat& taken) { return taken.id == node.id; });
    node.is_in_round = seat != seats.end();
    if (!node.is_in_round) continue;
    node.group_rank = seat->place.group_rank;
    node.first_rank = seat->place.first_rank;
    if (node.id == 0) {
      own = seat->place;
      continue;
    }
    start.place = seat->place;
    link_.send(node.id, start);
  }
  view_.world_size = static_cast<int>(own.world_size);
  return own;
}

void Coordinator::stop(message::Stop stop) {
  stop.generation = generation_;
  for (NodeView& node : view_.nodes) {
    if (!node.is_in_round) continue;
    node.is_ready = false;
    if (node.id != 0) link_.send(node.id, stop);
  }
}

void Coordinator::own_node_stopped() { view_.nodes.front().is_ready = true; }

void Coordinator::end(message::End end) {
  end.generation = generation_;
  send_to_members(end);
}

void Coordinator::kill_now() { send_to_members(message::KillNow{}); }

bool Coordinator::is_end_acknowledged() const {
  return std::all_of(peers_.begin(), peers_.end(), [](const auto& entry) {
    return entry.second.stage != Stage::kMember || entry.second.has_ended;
  });
}

void Coordinator::send_to_members(const Message& message) {
  for (const NodeView& node : view_.nodes) {
    if (node.id == 0 || !node.gone_because.empty()) continue;
    link_.send(node.id, message);
  }
}

}  // namespace muster
