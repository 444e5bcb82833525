#pragma once
/// What the agent does next, from everything it knows at `now`.
///
/// decide() is pure: no clock, store, process or log. The agent shows it the job after every event
/// and carries the answer out. The class of the first failure decides (core/base/error.h); `reason`
/// is one line for people, logged when it changes and asserted in tests.

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "core/base/time.h"
#include "launcher/rendezvous/nodes.h"
#include "launcher/rendezvous/worker_exit.h"

namespace muster {

/// One rank of the current attempt that has ended by itself.
struct RankExit {
  int global_rank = 0;
  WorkerExit exit;
  TimePoint at;
};

/// The job as its agent sees it; with several nodes, the agent of the host.
struct JobView {
  int world_size = 1;
  bool started = false;   ///< the current attempt has been started
  int attempt = 0;        ///< restarts so far
  int free_restarts = 0;  ///< how many of them count for nothing: nodes came or went
  int data_restarts = 0;  ///< how many of them answered a failure of class data
  std::vector<RankExit>
      exits{};  ///< of this attempt, in the order seen, before any was told to stop
  std::optional<int> stop_signal{};  ///< somebody asked the job to stop
  std::vector<NodeView> nodes{};     ///< all that were ever welcome; empty for a job on one node
  TimePoint forming_since{};         ///< when the latest round ended; for nodes
  std::string start_failure{};       ///< a node could not start its workers: who and why
  int start_failure_status = 0;      ///< the exit status that goes with it

  /// Restarts that count against max_restarts.
  [[nodiscard]] int failures() const noexcept { return attempt - free_restarts; }
};

/// The limits within which decide() restarts.
struct RestartPolicy {
  int max_restarts = 0;
  int max_data_restarts = 1;  ///< from the previous checkpoint; a second one would read it again
  /// How long the first failure may stay unexplained when it only says that a peer is gone or late:
  /// the peer's own exit may follow, and the others have a moment to say what they saw.
  Duration settle = 200ms;
  Duration grace = 30s;        ///< between SIGTERM and SIGKILL
  Duration crash_grace = 30s;  ///< the same after a crash; 0 kills at once
  NodesPolicy nodes{};
};

struct Decision {
  enum class Action : uint8_t { kWait, kStart, kRestartGroup, kFinish, kGiveUp };
  Action action = Action::kWait;
  std::string reason;                  ///< e.g. "restart 2 of 3: global rank 5 exited 75 (peer)"
  int exit_status = 0;                 ///< of the job, for kFinish and kGiveUp
  Duration grace{0};                   ///< for the ranks that still run
  std::optional<size_t> cause;         ///< index in JobView::exits of the failure that decided
  bool is_free = false;                ///< for kRestartGroup: does not count as a restart
  std::optional<TimePoint> ask_again;  ///< for kWait: decide anew at this time, even without event
};

/// "wait", "start", "restart", "finish", "give_up".
std::string_view to_string(Decision::Action action) noexcept;

Decision decide(const JobView& job, const RestartPolicy& policy, TimePoint now);

}  // namespace muster
