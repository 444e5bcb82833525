#pragma once
/// What agents of one job say to each other, as plain values.
///
/// Every message that concerns a round carries its generation, so that one which comes late is
/// recognised and dropped. The form on the wire is launcher/rendezvous/grpc's business; nothing
/// here needs it. Times are spans, never points: clocks of different hosts are not compared.

#include <cstdint>
#include <string>
#include <variant>

namespace muster {

/// What an agent says of itself, and what all agents of a job must say alike.
struct NodeOptions {
  std::string rdzv_id{};  ///< "" = any
  int64_t min_nodes = 1;
  int64_t max_nodes = 1;
  int64_t max_restarts = 0;
  std::string job{};   ///< what is run: program and arguments, or the recipe's digest
  std::string name{};  ///< "host:pid", for people
  int64_t local_world_size = 1;
  std::string role{};
  int64_t wanted_rank = -1;  ///< of --node-rank; -1 = any
};

/// A node's place in a round.
struct NodePlace {
  int64_t group_rank = 0;
  int64_t group_world_size = 1;
  int64_t first_rank = 0;  ///< global rank of its local rank 0
  int64_t world_size = 1;
  int64_t role_first_rank = 0;
  int64_t role_world_size = 1;
};

namespace message {

inline constexpr int64_t kProtocol = 1;

// The handshake: hello, challenge, join, welcome or refused.

struct Hello {
  int64_t protocol = kProtocol;
  std::string nonce{};
};
struct Challenge {
  std::string nonce{};
};
struct Join {
  std::string proof{};  ///< that the job token is known here
  NodeOptions node;
};
struct Welcome {
  std::string proof{};  ///< the same of the host
  std::string run_id{};
  int64_t lease_ns = 0;  ///< a side that is silent for longer counts as lost
};
struct Refused {
  int64_t code = 0;  ///< an ErrorCode
  std::string reason{};
};

// Host to node.

struct Start {
  int64_t generation = 0;
  int64_t attempt = 0;
  int64_t failures = 0;  ///< restarts that count, TORCHELASTIC_RESTART_COUNT
  NodePlace place;
  std::string master_addr{};
  int64_t master_port = 0;
};
struct Stop {
  int64_t generation = 0;
  int64_t grace_ns = 0;     ///< between the signal and SIGKILL
  int64_t cause_rank = -1;  ///< global rank whose failure it is; -1 when none's
  std::string reason{};
};
struct End {
  int64_t generation = 0;
  int64_t exit_status = 0;
  int64_t grace_ns = 0;
  int64_t signal = 0;  ///< for the workers; 0 = SIGTERM
  int64_t cause_rank = -1;
  std::string reason{};
};
/// The rest of a grace is over: SIGKILL.
struct KillNow {};

// Node to host.

struct WorkerEnded {
  int64_t generation = 0;
  int64_t global_rank = 0;
  int64_t status = 0;
  int64_t signal = 0;
  bool oom_killed = false;
  int64_t age_ns = 0;  ///< since it ended
};
struct StartFailed {
  int64_t generation = 0;
  int64_t code = 0;  ///< an ErrorCode
  std::string reason{};
};
/// Nothing of any generation up to this one runs any more.
struct Stopped {
  int64_t generation = 0;
};
/// The node leaves on purpose.
struct Leave {
  std::string reason{};
};
/// The host's End has arrived.
struct Ended {};

/// Both ways: I am here.
struct Beat {};

}  // namespace message

using Message = std::variant<message::Hello, message::Challenge, message::Join, message::Welcome,
                             message::Refused, message::Start, message::Stop, message::End,
                             message::KillNow, message::WorkerEnded, message::StartFailed,
                             message::Stopped, message::Leave, message::Ended, message::Beat>;

}  // namespace muster
