#include "launcher/rendezvous/doorman.h"

#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/epoll.h>
#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <string_view>

namespace muster {
namespace {
constexpr std::string_view kPreface = "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
constexpr int kAcceptsPerTurn = 64;
constexpr uint64_t kServer = 0;
constexpr uint64_t kListener = 1;
constexpr uint64_t kAlarm = 2;

// What somebody else has sent, for a line of a log.
std::string quoted(std::string_view bytes) {
  std::string text = "\"";
  for (const char byte : bytes) {
    const bool is_plain = byte >= ' ' && byte <= '~' && byte != '"' && byte != '\\';
    text += is_plain ? std::string(1, byte)
                     : fmt::format("\\x{:02x}", static_cast<unsigned char>(byte));
  }
  return text + "\"";
}
}  // namespace

DoormanLimits DoormanLimits::fitting() { return {.max_strangers = net::strangers_that_fit()}; }

Doorman::Doorman(net::UniqueFd listener, std::unique_ptr<ServerLink> server, DoormanLimits limits,
                 net::UniqueFd epoll, net::Alarm alarm, int port)
    : server_(std::move(server)),
      port_(port),
      epoll_(std::move(epoll)),
      acceptor_(std::move(listener)),
      alarm_(std::move(alarm)),
      last_id_(kAlarm),
      arrivals_(limits.max_strangers, limits.preface),
      guests_(limits.max_strangers, limits.trust),
      refusals_("rendezvous", [this](const std::string& text) {
        told_.push_back({.kind = LinkEvent::Kind::kRefused,
                         .peer = 0,
                         .message = message::Beat{},
                         .text = text});
      }) {}

Doorman::~Doorman() = default;

Result<std::unique_ptr<Doorman>> Doorman::open(net::UniqueFd listener,
                                               std::unique_ptr<ServerLink> server,
                                               DoormanLimits limits) {
  const int port = net::port_of(MUSTER_TRY(net::local_address(listener.get())));
  net::UniqueFd epoll(::epoll_create1(EPOLL_CLOEXEC));
  if (!epoll) return make_error(ErrorCode::kIo, "rendezvous: epoll: {}", errno_text(errno));
  net::Alarm alarm = MUSTER_TRY(net::Alarm::open());
  std::unique_ptr<Doorman> doorman(new Doorman(std::move(listener), std::move(server), limits,
                                               std::move(epoll), std::move(alarm), port));
  MUSTER_TRY(doorman->watch(doorman->server_->ready_fd(), kServer));
  MUSTER_TRY(doorman->watch(doorman->acceptor_.fd(), kListener));
  MUSTER_TRY(doorman->watch(doorman->alarm_.fd(), kAlarm));
  return doorman;
}

Result<void> Doorman::watch(int fd, uint64_t id) const {
  epoll_event event{};
  event.events = EPOLLIN;
  event.data.u64 = id;
  if (::epoll_ctl(epoll_.get(), EPOLL_CTL_ADD, fd, &event) == 0) return {};
  return make_error(ErrorCode::kIo, "rendezvous: epoll_ctl: {}", errno_text(errno));
}

std::vector<LinkEvent> Doorman::take() {
  std::array<epoll_event, 128> ready;
  const int n = ::epoll_wait(epoll_.get(), ready.data(), static_cast<int>(ready.size()), 0);
  // Before those who have left: whether the agent knew of them.
  std::vector<LinkEvent> events = server_->take();
  for (const LinkEvent& event : events) note(event);
  for (int i = 0; i < n; ++i) {
    const uint64_t id = ready[static_cast<size_t>(i)].data.u64;
    if (id == kListener) {
      accept_some();
    } else if (Arrival* arrival = arrivals_.find(id)) {
      read_preface(id, *arrival);
    } else if (id > kAlarm) {
      on_guest_left(id);
    }
  }
  expire();
  std::move(told_.begin(), told_.end(), std::back_inserter(events));
  told_.clear();
  return events;
}

void Doorman::note(const LinkEvent& event) {
  if (event.kind == LinkEvent::Kind::kClosed) peer_places_.erase(event.peer);
  if (event.kind != LinkEvent::Kind::kOpened) return;
  peer_places_[event.peer] = event.text;
  const auto id = guest_ids_.find(event.text);
  if (id == guest_ids_.end()) return;
  if (Guest* guest = guests_.find(id->second)) guest->has_peer = true;
}

void Doorman::trust(uint64_t peer) {
  server_->trust(peer);
  const auto place = peer_places_.find(peer);
  if (place == peer_places_.end()) return;
  const auto id = guest_ids_.find(place->second);
  peer_places_.erase(place);
  if (id == guest_ids_.end()) return;
  if (std::optional<Guest> guest = guests_.take(id->second)) forget(std::move(*guest));
}

// ---- at the door

void Doorman::accept_some() {
  for (int i = 0; i < kAcceptsPerTurn && accept_one(); ++i) {
  }
}

bool Doorman::accept_one() {
  Arrival arrival;
  switch (acceptor_.accept(arrival.from)) {
    case net::Acceptor::Outcome::kNobody:
      return false;
    case net::Acceptor::Outcome::kNoDescriptors: {
      const std::string reason = "no file descriptor is left for it; raise the limit (ulimit -n)";
      if (std::optional<Arrival> oldest = arrivals_.take_oldest()) {
        refuse(std::move(*oldest), Kind::kTooMany, reason);
      } else {
        acceptor_.drop_one();
        tell({.fd = {}, .address = "", .peer = "a peer"}, Kind::kTooMany, reason);
      }
      return true;
    }
    case net::Acceptor::Outcome::kCame:
      break;
  }
  const int on = 1;
  ::setsockopt(arrival.from.fd.get(), IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on));
  const uint64_t id = ++last_id_;
  if (!watch(arrival.from.fd.get(), id).ok()) return true;
  std::optional<Arrival> oldest = arrivals_.add(id, std::move(arrival), real_clock().now());
  if (oldest) {
    refuse(std::move(*oldest), Kind::kTooMany,
           fmt::format("{} others wait at the door and say nothing either", arrivals_.size()));
  }
  return true;
}

// Not a byte further, so that gRPC finds all the rest in the socket.
void Doorman::read_preface(uint64_t id, Arrival& arrival) {
  std::array<char, kPreface.size()> bytes;
  while (arrival.num_read < kPreface.size()) {
    const std::string_view wanted = kPreface.substr(arrival.num_read);
    const ssize_t n = ::recv(arrival.from.fd.get(), bytes.data(), wanted.size(), 0);
    if (n < 0 && errno == EINTR) continue;
    if (n < 0 && errno == EAGAIN) return;
    if (n <= 0) {
      Arrival gone = *arrivals_.take(id);
      if (gone.num_read == 0) return;  // it has asked for nothing
      return refuse(std::move(gone), Kind::kBroken, "its connection ended within the first bytes");
    }
    const std::string_view got(bytes.data(), static_cast<size_t>(n));
    if (!wanted.starts_with(got)) {
      const std::string all = std::string(kPreface.substr(0, arrival.num_read)).append(got);
      return refuse(*arrivals_.take(id), Kind::kWrongBytes,
                    fmt::format("no agent begins like that; got {}", quoted(all)));
    }
    arrival.num_read += got.size();
  }
  let_in(id);
}

void Doorman::let_in(uint64_t id) {
  Arrival arrival = *arrivals_.take(id);
  const int copy = ::fcntl(arrival.from.fd.get(), F_DUPFD_CLOEXEC, 0);
  if (copy < 0) {
    return refuse(std::move(arrival), Kind::kTooMany, "no file descriptor is left for it");
  }
  // From now on only its end matters here, which is told unasked.
  const uint64_t guest_id = ++last_id_;
  epoll_event event{};
  event.data.u64 = guest_id;
  ::epoll_ctl(epoll_.get(), EPOLL_CTL_MOD, arrival.from.fd.get(), &event);
  guest_ids_[arrival.from.peer] = guest_id;
  std::optional<Guest> oldest =
      guests_.add(guest_id, {.id = guest_id, .from = std::move(arrival.from)}, real_clock().now());
  server_->adopt(copy, kPreface);
  if (oldest) {
    refuse(std::move(*oldest), Kind::kTooMany,
           fmt::format("{} others have not proved who they are either", guests_.size()));
  }
}

// ---- inside

void Doorman::on_guest_left(uint64_t id) {
  std::optional<Guest> guest = guests_.take(id);
  if (!guest) return;
  const Guest gone = forget(std::move(*guest));
  if (gone.has_peer) return;
  tell(gone.from, Kind::kBroken,
       "it began as agents do, and its connection ended before it said who it is");
}

// The server's own descriptor keeps the connection in the epoll set: it must be taken out.
Doorman::Guest Doorman::forget(Guest guest) {
  ::epoll_ctl(epoll_.get(), EPOLL_CTL_DEL, guest.from.fd.get(), nullptr);
  const auto id = guest_ids_.find(guest.from.peer);
  if (id != guest_ids_.end() && id->second == guest.id) guest_ids_.erase(id);
  return guest;
}

void Doorman::expire() {
  const TimePoint now = real_clock().now();
  while (std::optional<Arrival> late = arrivals_.take_late(now)) {
    refuse(std::move(*late), Kind::kTooSlow,
           fmt::format("it must begin to speak within {}", format_duration(arrivals_.limit())));
  }
  while (std::optional<Guest> late = guests_.take_late(now)) {
    refuse(std::move(*late), Kind::kTooSlow,
           fmt::format("it must prove who it is within {}", format_duration(guests_.limit())));
  }
  const std::optional<TimePoint> first = arrivals_.next_limit();
  const std::optional<TimePoint> second = guests_.next_limit();
  alarm_.set(first && second ? std::min(first, second) : first ? first : second);
}

// ---- refusals

void Doorman::refuse(Arrival arrival, Kind kind, const std::string& reason) {
  tell(arrival.from, kind, reason);
}

void Doorman::refuse(Guest guest, Kind kind, const std::string& reason) {
  const Guest gone = forget(std::move(guest));
  ::shutdown(gone.from.fd.get(), SHUT_RDWR);  // the server, which has it too, closes it then
  tell(gone.from, kind, reason);
}

void Doorman::tell(const net::Incoming& from, Kind kind, const std::string& reason) {
  refusals_.add(from.peer, from.address, static_cast<int>(kind), reason, real_clock().now());
}

}  // namespace muster
