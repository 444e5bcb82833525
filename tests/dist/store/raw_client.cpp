#include "tests/dist/store/raw_client.h"

#include <arpa/inet.h>
#include <fmt/format.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <charconv>
#include <utility>

namespace muster::testing {
namespace {
constexpr int kPatienceMs = 20'000;
}

RawClient::RawClient(int port) : fd_(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)) {
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = htons(static_cast<uint16_t>(port));
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  const int on = 1;
  ::setsockopt(fd_, IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on));
  const int status = ::connect(fd_, reinterpret_cast<sockaddr*>(&address), sizeof(address));
  MUSTER_CHECK(status == 0, ErrorCode::kPeerLost, "raw client: connect to port {}: {}", port,
               errno_text(errno));
}

RawClient::~RawClient() {
  if (fd_ >= 0) ::close(fd_);
}

void RawClient::end_sending() { ::shutdown(fd_, SHUT_WR); }

void RawClient::reset() {
  const linger at_once{.l_onoff = 1, .l_linger = 0};
  ::setsockopt(fd_, SOL_SOCKET, SO_LINGER, &at_once, sizeof(at_once));
  ::close(std::exchange(fd_, -1));
}

bool RawClient::send(std::string_view bytes) {
  while (!bytes.empty()) {
    const ssize_t count = ::send(fd_, bytes.data(), bytes.size(), MSG_NOSIGNAL);
    if (count <= 0) return false;
    bytes.remove_prefix(static_cast<size_t>(count));
  }
  return true;
}

size_t RawClient::send_some(std::string_view bytes) {
  const ssize_t count = ::send(fd_, bytes.data(), bytes.size(), MSG_NOSIGNAL | MSG_DONTWAIT);
  return count > 0 ? static_cast<size_t>(count) : 0;
}

std::string RawClient::read(size_t nbytes) {
  std::string bytes;
  while (bytes.size() < nbytes) {
    pollfd polled{fd_, POLLIN, 0};
    if (::poll(&polled, 1, kPatienceMs) <= 0) break;
    char chunk[65536];
    const size_t wanted = std::min(nbytes - bytes.size(), sizeof(chunk));
    const ssize_t count = ::recv(fd_, chunk, wanted, 0);
    if (count <= 0) break;
    bytes.append(chunk, static_cast<size_t>(count));
  }
  return bytes;
}

bool RawClient::ends() {
  pollfd polled{fd_, POLLIN, 0};
  if (::poll(&polled, 1, kPatienceMs) <= 0) return false;
  char byte = 0;
  return ::recv(fd_, &byte, 1, 0) <= 0;  // the end, or a reset
}

bool RawClient::is_quiet() {
  pollfd polled{fd_, POLLIN | POLLRDHUP, 0};
  return ::poll(&polled, 1, 0) == 0;
}

bool RawClient::shake_hands() { return send(from_hex("00cef7853c")) && ping(); }

bool RawClient::ping() {
  const std::string request = from_hex("0d39300000");
  return send(request) && read(4) == request.substr(1);
}

std::string from_hex(std::string_view hex) {
  std::string bytes;
  for (size_t i = 0; i + 1 < hex.size(); i += 2) {
    int value = 0;
    std::from_chars(hex.data() + i, hex.data() + i + 2, value, 16);
    bytes.push_back(static_cast<char>(value));
  }
  return bytes;
}

std::string to_hex(std::string_view bytes) {
  std::string hex;
  for (const char c : bytes) hex += fmt::format("{:02x}", static_cast<unsigned char>(c));
  return hex;
}

}  // namespace muster::testing
