#pragma once
/// The agent that decides: of a job's only node, or of the host of its rendezvous.
///
/// Shows the job to decide() after every event and carries out what it says: on the other nodes
/// first, on its own second.

#include <memory>
#include <nlohmann/json_fwd.hpp>
#include <string>

#include "launcher/agent/local_node.h"
#include "launcher/rendezvous/coordinator.h"
#include "launcher/rendezvous/decide.h"

namespace muster {
class TcpStoreServer;

class Agent {
 public:
  /// The node outlives the agent. `link` is the server that the other nodes come to; null for a job
  /// on one node.
  Agent(LocalNode& node, std::unique_ptr<Link> link);
  ~Agent();
  Agent(const Agent&) = delete;
  Agent& operator=(const Agent&) = delete;

  /// Runs the job; returns its exit status.
  /// @blocks until the job has ended and no descendant of this process is left
  int run();

 private:
  void host_rendezvous();
  Result<void> start_attempt();
  Result<int64_t> next_generation();
  void restart(const Decision& decision);
  int give_up(const Decision& decision);
  int finish(int exit_status);
  void await_acknowledgements();
  void note_exit_elsewhere(const NodeView& node, const RankExit& exit);
  void note(const Decision& decision);
  void describe(nlohmann::ordered_json& json) const;

  LocalNode& node_;
  JobView view_;
  std::unique_ptr<Link> link_;
  std::unique_ptr<Coordinator> coordinator_;  ///< null for a job on one node
  UniqueFd beats_;
  std::unique_ptr<TcpStoreServer> store_;
  int64_t generations_left_ = 0;
  int64_t generation_ = 0;
  std::string last_reason_;
};

/// How long ranks that have diverged may take to tell their sides of it.
inline constexpr Duration kLastWordsLimit = 500ms;

/// A timer that is readable every `period`. @error throws kIo
UniqueFd open_beat_timer(Duration period);
/// Makes it wait for the next period again.
void take_beat(int fd);

}  // namespace muster
