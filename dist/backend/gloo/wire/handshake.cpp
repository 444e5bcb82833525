#include "dist/backend/gloo/wire/handshake.h"

#include <fmt/format.h>
#include <poll.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>

#include "dist/backend/gloo/wire/frame.h"
#include "dist/net/token.h"

namespace muster::wire {
namespace {
constexpr std::string_view kMagic = "muster gloo 001\n";
constexpr size_t kHelloNbytes = 16 + sizeof(int32_t) + net::kNonceNbytes;
constexpr size_t kAnswerNbytes = net::kNonceNbytes + net::kProofNbytes;
constexpr char kWelcome = 'w';
static_assert(kMagic.size() == 16);

// A few bytes into a fresh socket: they fit, or the peer is not worth waiting for.
bool send_all(int fd, std::string_view bytes) {
  return ::send(fd, bytes.data(), bytes.size(), MSG_NOSIGNAL | MSG_DONTWAIT) ==
         static_cast<ssize_t>(bytes.size());
}

Result<std::string> receive(int fd, size_t nbytes, Deadline deadline) {
  std::string bytes;
  while (bytes.size() < nbytes) {
    if (MUSTER_TRY(net::poll_fd(fd, POLLIN, deadline, -1)) == net::PollOutcome::kTimeout) {
      return make_error(ErrorCode::kTimeout, "handshake: no answer before the deadline");
    }
    char buffer[128];
    const ssize_t n = ::recv(fd, buffer, std::min(sizeof(buffer), nbytes - bytes.size()), 0);
    if (n == 0) return make_error(ErrorCode::kPeerLost, "handshake: the connection was closed");
    if (n < 0 && errno != EINTR && errno != EAGAIN) {
      return make_error(ErrorCode::kPeerLost, "handshake: {}", errno_text(errno));
    }
    if (n > 0) bytes.append(buffer, static_cast<size_t>(n));
  }
  return bytes;
}

std::string printable(std::string_view bytes) {
  std::string text;
  for (const char c : bytes.substr(0, 16)) text += c >= 32 && c < 127 ? c : '.';
  return text;
}
}  // namespace

Result<void> greet(int fd, const std::string& secret, int own_rank, Deadline deadline) {
  const std::string words = to_bytes(static_cast<int32_t>(own_rank)) + net::make_nonce();
  const auto broken = [] {
    return make_error(ErrorCode::kPeerLost, "handshake: the connection broke");
  };
  if (!send_all(fd, std::string(kMagic) + words)) return broken();
  const std::string answer = MUSTER_TRY(receive(fd, kAnswerNbytes, deadline));
  const std::string server_nonce = answer.substr(0, net::kNonceNbytes);
  if (!net::equal_in_constant_time(answer.substr(net::kNonceNbytes),
                                   net::server_proof(secret, words, server_nonce))) {
    return make_error(ErrorCode::kFailedPrecondition,
                      "handshake: the other side must know the job's secret; it does not");
  }
  if (!send_all(fd, net::client_proof(secret, words, server_nonce))) return broken();
  MUSTER_TRY(receive(fd, 1, deadline));
  return {};
}

std::optional<Refusal> Greeting::on_readable(const std::string& secret) {
  char buffer[256];
  const size_t wanted = claimed_rank_ < 0 ? kHelloNbytes : net::kProofNbytes;
  while (in_.size() < wanted) {
    const ssize_t n =
        ::recv(fd_.get(), buffer, std::min(sizeof(buffer), wanted - in_.size()), MSG_DONTWAIT);
    if (n == 0) return Refusal{RefusalKind::kBroken, "it left before it had introduced itself"};
    if (n < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) break;
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) return Refusal{RefusalKind::kBroken, errno_text(errno)};
    in_.append(buffer, static_cast<size_t>(n));
  }
  const size_t compared = std::min(in_.size(), kMagic.size());
  if (claimed_rank_ < 0 && in_.compare(0, compared, kMagic, 0, compared) != 0) {
    return Refusal{RefusalKind::kProtocol,
                   fmt::format("it is no rank of this job; it said \"{}\"", printable(in_))};
  }
  if (in_.size() < wanted) return std::nullopt;
  return claimed_rank_ < 0 ? on_hello(secret) : on_proof(secret);
}

std::optional<Refusal> Greeting::on_hello(const std::string& secret) {
  client_words_ = in_.substr(kMagic.size());
  claimed_rank_ = from_bytes<int32_t>(client_words_.data());
  in_.clear();
  if (claimed_rank_ < 0) return Refusal{RefusalKind::kProtocol, "it claims a negative rank"};
  server_nonce_ = net::make_nonce();
  if (!send_all(fd_.get(),
                server_nonce_ + net::server_proof(secret, client_words_, server_nonce_))) {
    return Refusal{RefusalKind::kBroken, "it takes no answer"};
  }
  return std::nullopt;
}

std::optional<Refusal> Greeting::on_proof(const std::string& secret) {
  if (!net::equal_in_constant_time(in_, net::client_proof(secret, client_words_, server_nonce_))) {
    return Refusal{RefusalKind::kProof, "it does not know the job's secret"};
  }
  rank_ = claimed_rank_;
  return std::nullopt;
}

net::UniqueFd Greeting::welcome() {
  send_all(fd_.get(), std::string_view(&kWelcome, 1));
  return std::move(fd_);
}

}  // namespace muster::wire
