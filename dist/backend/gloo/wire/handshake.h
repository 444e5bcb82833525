#pragma once
/// How two ranks recognise each other: both prove, by HMAC over fresh nonces, that they know the
/// secret that the job's store holds. Whoever cannot is refused before anything else is read.
///
/// client: magic, rank, nonce -> server: nonce, proof -> client: proof -> server: welcome.

#include <optional>
#include <string>

#include "dist/net/acceptor.h"

namespace muster::wire {

/// Why a connection is refused.
enum class RefusalKind : int { kProtocol, kProof, kTooSlow, kTooMany, kBroken };
struct Refusal {
  RefusalKind kind;
  std::string reason;
};

/// The connecting side. @blocks until welcomed or `deadline`
/// @error kFailedPrecondition the other side does not know the secret; kPeerLost, kTimeout
Result<void> greet(int fd, const std::string& secret, int own_rank, Deadline deadline);

/// The listening side of one connection; fed by an event loop, never blocks.
class Greeting {
 public:
  explicit Greeting(net::Incoming from)
      : fd_(std::move(from.fd)),
        peer_address_(std::move(from.address)),
        peer_(std::move(from.peer)) {}

  [[nodiscard]] int fd() const noexcept { return fd_.get(); }
  [[nodiscard]] const std::string& peer_address() const noexcept { return peer_address_; }
  [[nodiscard]] const std::string& peer() const noexcept { return peer_; }

  /// Reads on; a refusal ends it. Then rank() tells whether the proof is in.
  std::optional<Refusal> on_readable(const std::string& secret);
  /// The rank that proved itself.
  [[nodiscard]] std::optional<int> rank() const noexcept { return rank_; }
  /// Sends the welcome and gives the connection away.
  net::UniqueFd welcome();

 private:
  std::optional<Refusal> on_hello(const std::string& secret);
  std::optional<Refusal> on_proof(const std::string& secret);

  net::UniqueFd fd_;
  const std::string peer_address_, peer_;
  std::string in_;
  std::string client_words_, server_nonce_;  // set once the hello is in
  int claimed_rank_ = -1;
  std::optional<int> rank_;
};

}  // namespace muster::wire
