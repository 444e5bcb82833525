#pragma once
/// What the tcp store's server knows of one connection. Plain data: the request handler reads and
/// writes it, the event loop owns it. Idle, it costs a few hundred bytes.

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "core/base/time.h"
#include "dist/net/sockets.h"
#include "dist/store/internal/out_queue.h"
#include "dist/store/internal/wire.h"

namespace muster::internal {

/// Why a connection is refused; a peer is reported once for each.
enum class RejectKind { kProtocol, kToken, kLimit, kMemory, kTooSlow, kTooMany };

struct Rejection {
  RejectKind kind;
  std::string reason;
};

/// How far the handshake is.
enum class Stage : uint8_t {
  kNew,        ///< VALIDATE must come
  kChallenge,  ///< AUTH_BEGIN must come
  kProof,      ///< AUTH_PROOF must come
  kReady,      ///< requests are served
};

/// A request with a list of keys that has not arrived completely.
struct KeyListRequest {
  Opcode opcode = Opcode::kCheck;
  uint64_t num_remaining = 0;
  std::vector<std::string> keys;
  int64_t nbytes = 0;
};

/// A WAIT or BARRIER that is not answered yet.
struct PendingWait {
  std::vector<std::string> keys;
  size_t watched = 0;                    ///< index of the missing key that it is registered for
  std::optional<int64_t> barrier_world;  ///< the counter must reach this
  int64_t nbytes = 0;
};

struct Challenge {
  std::string client_nonce;
  std::string server_nonce;
};

struct ServerConnection {
  uint64_t id = 0;
  net::UniqueFd fd;
  std::string peer;  ///< numeric address and port
  std::string peer_address;
  TimePoint accepted_at;

  Stage stage = Stage::kNew;
  std::string in;  ///< received, not yet a whole request
  OutQueue out;
  std::unique_ptr<KeyListRequest> list;
  std::unique_ptr<PendingWait> wait;
  std::unique_ptr<Challenge> challenge;
  std::string owed_queue;  ///< woken for an item of this queue, which it has not popped yet
  std::optional<Rejection> rejection;

  bool touched = false;        ///< has new replies
  uint32_t epoll_events = 0;   ///< registered with epoll
  int64_t charged_nbytes = 0;  ///< counted in the server's memory
};

}  // namespace muster::internal
