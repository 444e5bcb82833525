#include "dist/store/internal/store_connection.h"

#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "core/base/units.h"
#include "dist/net/token.h"
#include "dist/store/internal/messages.h"
#include "dist/store/internal/wire.h"

namespace muster::internal {
namespace {
constexpr size_t kReceiveNbytes = 64 << 10;
// PyTorch's server lets APPEND grow a value beyond the limit of one message.
constexpr uint64_t kMaxReplyNbytes = uint64_t{256} << 20;

constexpr std::string_view kClosedInHandshake = "handshake: the server closed the connection";

// Who hangs up does not say why.
Error closed_in_handshake(std::string_view token) {
  return make_error(ErrorCode::kPeerLost, "handshake: the server closed the connection; {}",
                    token.empty() ? "it may require a token, or be no TCPStore"
                                  : "it may not know about tokens (PyTorch's does not, and a "
                                    "server without required_token refuses them)");
}
}  // namespace

Result<StoreConnection> StoreConnection::open(const net::SocketAddress& address,
                                              std::string_view token, Deadline deadline,
                                              int cancel_fd) {
  StoreConnection connection(MUSTER_TRY(net::connect_to(address, deadline, cancel_fd)), cancel_fd);
  MUSTER_TRY(connection.shake_hands(token, deadline));
  return connection;
}

bool StoreConnection::was_closed_in_handshake(const Error& error) {
  return error.message().starts_with(kClosedInHandshake);
}

Result<void> StoreConnection::shake_hands(std::string_view token, Deadline deadline) {
  const auto nonce = static_cast<uint32_t>(::getpid());
  // In one piece: PyTorch's server closes a connection whose first read lacks a part of VALIDATE.
  WireWriter hello;
  hello.opcode(Opcode::kValidate).u32(kValidateMagic);
  if (!token.empty()) {
    const std::string client_nonce = net::make_nonce();
    hello.opcode(Opcode::kAuthBegin).raw(client_nonce);
    MUSTER_TRY(send(hello.text(), deadline));
    MUSTER_TRY(prove_token(token, client_nonce, deadline));
    hello.text().clear();
  }
  hello.opcode(Opcode::kPing).u32(nonce);
  MUSTER_TRY(send(hello.text(), deadline));
  const Result<uint32_t> echo = read_u32(deadline);
  if (!echo.ok()) {
    if (echo.error().code() == ErrorCode::kPeerLost) return closed_in_handshake(token);
    return echo.error();
  }
  if (echo.value() != nonce) {
    return make_error(ErrorCode::kFailedPrecondition,
                      "handshake: no TCPStore server behind the port; it answered PING {:#010x} "
                      "with {:#010x}",
                      nonce, echo.value());
  }
  return {};
}

Result<void> StoreConnection::prove_token(std::string_view token, std::string_view client_nonce,
                                          Deadline deadline) {
  const Result<std::string> server_nonce = read(net::kNonceNbytes, deadline);
  if (!server_nonce.ok()) {
    if (server_nonce.error().code() == ErrorCode::kPeerLost) return closed_in_handshake(token);
    return server_nonce.error();
  }
  WireWriter proof;
  proof.opcode(Opcode::kAuthProof)
      .raw(net::client_proof(token, client_nonce, server_nonce.value()));
  MUSTER_TRY(send(proof.text(), deadline));
  const Result<std::string> answer = read(net::kProofNbytes, deadline);
  if (!answer.ok() && answer.error().code() == ErrorCode::kPeerLost) {
    return make_error(ErrorCode::kFailedPrecondition,
                      "handshake: the token must be the server's; the server refused it");
  }
  if (!answer.ok()) return answer.error();
  if (!net::equal_in_constant_time(answer.value(),
                                   net::server_proof(token, client_nonce, server_nonce.value()))) {
    return make_error(ErrorCode::kFailedPrecondition,
                      "handshake: the server must know the token; its proof is wrong");
  }
  return {};
}

Result<void> StoreConnection::poll(short events, std::string_view what, Deadline deadline) const {
  switch (MUSTER_TRY(net::poll_fd(fd_.get(), events, deadline, cancel_fd_))) {
    case net::PollOutcome::kReady:
      return {};
    case net::PollOutcome::kCancelled:
      return make_error(ErrorCode::kAborted, "{}: cancelled", what);
    case net::PollOutcome::kTimeout:
      break;
  }
  return make_error(ErrorCode::kTimeout, "{}: the server did not answer in time", what);
}

Result<bool> StoreConnection::receive() {
  if (in_at_ == in_.size()) {
    in_.clear();
    in_at_ = 0;
  }
  const size_t before = in_.size();
  in_.resize(before + kReceiveNbytes);
  const ssize_t count = ::recv(fd_.get(), in_.data() + before, kReceiveNbytes, MSG_DONTWAIT);
  const int error = errno;
  in_.resize(before + static_cast<size_t>(std::max<ssize_t>(count, 0)));
  if (count > 0) return true;
  if (count == 0) {
    return make_error(ErrorCode::kPeerLost, "receive: the server closed the connection");
  }
  if (error == EAGAIN || error == EWOULDBLOCK || error == EINTR) return false;
  return make_error(ErrorCode::kPeerLost, "receive: {}", errno_text(error));
}

Result<void> StoreConnection::send(std::string_view bytes, Deadline deadline) {
  while (!bytes.empty()) {
    const ssize_t count =
        ::send(fd_.get(), bytes.data(), bytes.size(), MSG_NOSIGNAL | MSG_DONTWAIT);
    if (count > 0) {
      bytes.remove_prefix(static_cast<size_t>(count));
    } else if (errno == EAGAIN || errno == EWOULDBLOCK) {
      MUSTER_TRY(poll(POLLIN | POLLOUT, "send", deadline));
      MUSTER_TRY(receive());
    } else if (errno != EINTR) {
      return make_error(ErrorCode::kPeerLost, "send: {}", errno_text(errno));
    }
  }
  return {};
}

Result<std::string> StoreConnection::read(size_t nbytes, Deadline deadline) {
  while (in_.size() - in_at_ < nbytes) {
    MUSTER_TRY(poll(POLLIN, "receive", deadline));
    MUSTER_TRY(receive());
  }
  std::string bytes = in_.substr(in_at_, nbytes);
  in_at_ += nbytes;
  // A large value must not stay for the life of the connection.
  if (in_at_ == in_.size() && in_.capacity() > 4 * kReceiveNbytes) {
    std::string().swap(in_);
    in_at_ = 0;
  }
  return bytes;
}

Result<uint64_t> StoreConnection::read_integer(size_t nbytes, Deadline deadline) {
  const std::string bytes = MUSTER_TRY(read(nbytes, deadline));
  uint64_t value = 0;
  std::memcpy(&value, bytes.data(), nbytes);
  return value;
}

Result<uint8_t> StoreConnection::read_u8(Deadline deadline) {
  return static_cast<uint8_t>(MUSTER_TRY(read_integer(sizeof(uint8_t), deadline)));
}

Result<uint32_t> StoreConnection::read_u32(Deadline deadline) {
  return static_cast<uint32_t>(MUSTER_TRY(read_integer(sizeof(uint32_t), deadline)));
}

Result<int64_t> StoreConnection::read_i64(Deadline deadline) {
  return static_cast<int64_t>(MUSTER_TRY(read_integer(sizeof(int64_t), deadline)));
}

Result<std::string> StoreConnection::read_bytes(Deadline deadline) {
  const uint64_t nbytes = MUSTER_TRY(read_integer(sizeof(uint64_t), deadline));
  if (nbytes > kMaxReplyNbytes) {
    return make_error(ErrorCode::kPeerLost,
                      "receive: the server must speak the TCPStore protocol; it announced a value "
                      "of {} bytes",
                      nbytes);
  }
  return read(static_cast<size_t>(nbytes), deadline);
}

bool StoreConnection::is_quiet() const {
  pollfd polled{fd_.get(), POLLIN | POLLRDHUP, 0};
  return in_at_ == in_.size() && ::poll(&polled, 1, 0) == 0;
}

}  // namespace muster::internal
