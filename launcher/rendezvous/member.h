#pragma once
/// A node's side of the rendezvous: the handshake, and what the host says after it.
///
/// Obeys nobody who has not proved the job token. It starts nothing itself: the agent takes the
/// orders and carries them out.

#include <optional>
#include <string>
#include <vector>

#include "core/base/result.h"
#include "core/base/time.h"
#include "launcher/rendezvous/link.h"

namespace muster {

class Member {
 public:
  /// The link outlives it.
  Member(Link& link, std::string token, NodeOptions own, TimePoint now);

  /// Takes in what has come.
  void take_events(TimePoint now);
  /// Tells the host that this node lives; call it a few times in each lease.
  void beat(TimePoint now);

  /// The next Start, Stop or End; nullopt when there is none.
  std::optional<Message> next_order();
  /// True once the host wants no more grace to be given.
  [[nodiscard]] bool is_kill_now() const noexcept { return is_kill_now_; }

  void send(const Message& message) { link_.send(kHost, message); }

  [[nodiscard]] bool has_joined() const noexcept { return has_joined_; }
  [[nodiscard]] const std::string& run_id() const noexcept { return run_id_; }
  [[nodiscard]] Duration lease() const noexcept { return lease_; }
  /// Why this node is out: it was refused, or the host is lost (kPeerLost); nullopt while it is in.
  [[nodiscard]] const std::optional<Error>& failure() const noexcept { return failure_; }

 private:
  static constexpr uint64_t kHost = 1;

  void take(const Message& message, TimePoint now);
  void fail(ErrorCode code, const std::string& text);

  Link& link_;
  const std::string token_;
  const NodeOptions own_;
  const std::string nonce_;
  std::string host_nonce_;
  std::string run_id_;
  Duration lease_ = 5s;
  TimePoint heard_at_;
  bool has_joined_ = false;
  bool is_kill_now_ = false;
  std::vector<Message> orders_;
  std::optional<Error> failure_;
};

}  // namespace muster
