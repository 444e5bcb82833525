#pragma once
/// The host's side of the rendezvous: turns messages of the nodes into a JobView, and what was
/// decided into messages.
///
/// Nobody is a node before the handshake is done: protocol, proof of the job token, fitting
/// options. Until then a peer learns nothing but a nonce, and it has ten seconds. It decides
/// nothing (decide.h) and starts nothing.

#include <functional>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "launcher/rendezvous/decide.h"
#include "launcher/rendezvous/link.h"

namespace muster {

class Coordinator {
 public:
  struct Options {
    std::string token;
    std::string run_id;
    NodeOptions own;  ///< of the host's node
    NodesPolicy policy;
    /// Told of each worker of another node that has ended, for the record.
    std::function<void(const NodeView&, const RankExit&)> on_exit = {};
  };

  /// The link outlives it. Puts the host's own node into the view.
  Coordinator(Link& link, Options options, JobView& view, TimePoint now);

  /// Takes in what the nodes have said.
  void take_events(TimePoint now);
  /// Tells all nodes that the host lives; call it a few times in each lease. Lets go of strangers
  /// that do not say who they are.
  void beat(TimePoint now);
  /// Lets go of the nodes whose lease has ended: what they say later counts for nothing. Call it
  /// before each decision.
  void expire(TimePoint now);

  /// Begins a round: seats in the view, a Start to every node that has one. `start` holds what they
  /// have in common. Returns the host's own place.
  NodePlace start(const std::vector<Seat>& seats, message::Start start);
  /// Ends a round: a Stop to every node of it, none of which is ready then.
  void stop(message::Stop stop);
  /// The host's own node has nothing of the round left.
  void own_node_stopped();
  /// Ends the job on all nodes.
  void end(message::End end);
  void kill_now();

  /// True when no node is left that has not acknowledged the end.
  [[nodiscard]] bool is_end_acknowledged() const;

 private:
  enum class Stage : uint8_t { kAwaitsHello, kAwaitsJoin, kMember };
  struct Peer {
    Stage stage = Stage::kAwaitsHello;
    std::string address;
    TimePoint opened_at{};
    std::string node_nonce{};
    std::string host_nonce{};
    bool has_ended = false;
  };

  void take(uint64_t peer, const Message& message, TimePoint now);
  void take_hello(uint64_t id, Peer& peer, const message::Hello& hello);
  void take_join(uint64_t id, Peer& peer, const message::Join& join, TimePoint now);
  void take_exit(const NodeView& node, const message::WorkerEnded& ended, TimePoint now);
  void refuse(uint64_t id, ErrorCode code, const std::string& kind, const std::string& reason);
  void limit_strangers();
  void lose(NodeView& node, const std::string& why);
  NodeView* find(uint64_t id);
  void send_to_members(const Message& message);

  Link& link_;
  const Options options_;
  JobView& view_;
  std::map<uint64_t, Peer> peers_;
  std::set<std::string> told_;  ///< refusals that the log has already
  int64_t generation_ = 0;      ///< of the latest round
};

}  // namespace muster
