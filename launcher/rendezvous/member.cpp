#include "launcher/rendezvous/member.h"

#include "launcher/rendezvous/proof.h"

namespace muster {

Member::Member(Link& link, std::string token, NodeOptions own, TimePoint now)
    : link_(link),
      token_(std::move(token)),
      own_(std::move(own)),
      nonce_(make_proof_nonce()),
      heard_at_(now) {
  send(message::Hello{.nonce = nonce_});
}

void Member::take_events(TimePoint now) {
  for (const LinkEvent& event : link_.take()) {
    if (event.kind == LinkEvent::Kind::kMessage) take(event.message, now);
    if (event.kind != LinkEvent::Kind::kClosed) continue;
    fail(ErrorCode::kPeerLost, fmt::format("the host of the rendezvous is lost: {}", event.text));
  }
}

void Member::take(const Message& message, TimePoint now) {
  heard_at_ = now;
  if (const auto* refused = std::get_if<message::Refused>(&message)) {
    const auto code = static_cast<ErrorCode>(refused->code);
    fail(exit_status(code) == 0 ? ErrorCode::kRendezvous : code,
         "the host of the rendezvous refuses this node: " + refused->reason);
    return;
  }
  if (const auto* challenge = std::get_if<message::Challenge>(&message)) {
    if (!host_nonce_.empty()) return;
    host_nonce_ = challenge->nonce;
    send(message::Join{.proof = node_proof(token_, nonce_, host_nonce_), .node = own_});
    return;
  }
  if (const auto* welcome = std::get_if<message::Welcome>(&message)) {
    if (host_nonce_.empty() ||
        !is_same_proof(welcome->proof, host_proof(token_, nonce_, host_nonce_))) {
      fail(ErrorCode::kFailedPrecondition,
           "the host of the rendezvous must know the job token; it does not");
      return;
    }
    has_joined_ = true;
    run_id_ = welcome->run_id;
    lease_ = Duration(welcome->lease_ns);
    return;
  }
  if (!has_joined_) return;
  if (std::holds_alternative<message::KillNow>(message)) is_kill_now_ = true;
  if (std::holds_alternative<message::Start>(message) ||
      std::holds_alternative<message::Stop>(message) ||
      std::holds_alternative<message::End>(message)) {
    orders_.push_back(message);
  }
}

void Member::beat(TimePoint now) {
  if (!has_joined_) return;
  send(message::Beat{});
  // The host must have noticed this node's silence before this node gives the host up: it has the
  // longer view. Twice the lease also covers a host that was paused for a moment.
  if (now - heard_at_ > 2 * lease_) {
    fail(ErrorCode::kPeerLost,
         fmt::format("the host of the rendezvous was silent for {}", format_duration(2 * lease_)));
  }
}

std::optional<Message> Member::next_order() {
  if (orders_.empty()) return std::nullopt;
  Message order = std::move(orders_.front());
  orders_.erase(orders_.begin());
  return order;
}

void Member::fail(ErrorCode code, const std::string& text) {
  if (!failure_) failure_ = Error(code, text);
}

}  // namespace muster
