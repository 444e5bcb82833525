#pragma once
/// Stands at the host's port, in front of the server: strangers are let in one by one and let go.
///
/// gRPC by itself takes every connection, keeps idle ones until no descriptor is left and says
/// nothing about what it refuses. Here a connection must begin with HTTP/2's preface, byte for
/// byte, before gRPC gets it; inside it stays a stranger, which can be shown out, until the agent
/// trusts its peer. Both kinds are bounded in number and time, and refusals are told once a minute
/// for each address and kind.

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "dist/net/acceptor.h"
#include "dist/net/alarm.h"
#include "dist/net/reject_log.h"
#include "dist/net/strangers.h"
#include "launcher/rendezvous/link.h"

namespace muster {

struct DoormanLimits {
  Duration preface = 10s;  ///< for the first bytes
  /// From there until the peer is trusted: longer than the agent's own limit, which tells the peer
  /// why.
  Duration trust = 20s;
  size_t max_strangers = 1024;  ///< at the door, and the same number inside

  /// With as many strangers as this process has descriptors for.
  static DoormanLimits fitting();
};

/// No threads: it works while the agent takes events.
class Doorman final : public Link {
 public:
  /// @error kIo
  static Result<std::unique_ptr<Doorman>> open(net::UniqueFd listener,
                                               std::unique_ptr<ServerLink> server,
                                               DoormanLimits limits);
  ~Doorman() override;

  [[nodiscard]] int ready_fd() const override { return epoll_.get(); }
  std::vector<LinkEvent> take() override;
  void send(uint64_t peer, const Message& message) override { server_->send(peer, message); }
  void close(uint64_t peer) override { server_->close(peer); }
  void trust(uint64_t peer) override;
  [[nodiscard]] int port() const override { return port_; }

 private:
  enum class Kind : int { kWrongBytes, kTooSlow, kTooMany, kBroken };
  struct Arrival {
    net::Incoming from;
    size_t num_read = 0;  ///< bytes of the preface
  };
  /// A second descriptor of a connection that the server has.
  struct Guest {
    uint64_t id = 0;
    net::Incoming from;
    bool has_peer = false;  ///< the agent knows of it, and says what becomes of it
  };

  Doorman(net::UniqueFd listener, std::unique_ptr<ServerLink> server, DoormanLimits limits,
          net::UniqueFd epoll, net::Alarm alarm, int port);
  Result<void> watch(int fd, uint64_t id) const;
  void note(const LinkEvent& event);
  void accept_some();
  bool accept_one();
  void read_preface(uint64_t id, Arrival& arrival);
  void let_in(uint64_t id);
  void on_guest_left(uint64_t id);
  void expire();
  Guest forget(Guest guest);
  void refuse(Arrival arrival, Kind kind, const std::string& reason);
  void refuse(Guest guest, Kind kind, const std::string& reason);
  void tell(const net::Incoming& from, Kind kind, const std::string& reason);

  const std::unique_ptr<ServerLink> server_;
  const int port_;
  const net::UniqueFd epoll_;
  net::Acceptor acceptor_;
  net::Alarm alarm_;
  uint64_t last_id_;
  net::Strangers<Arrival> arrivals_;
  net::Strangers<Guest> guests_;
  std::map<std::string, uint64_t> guest_ids_;    ///< by "address:port"
  std::map<uint64_t, std::string> peer_places_;  ///< "address:port" of peers that are no members
  net::RejectLog refusals_;
  std::vector<LinkEvent> told_;  ///< since the last take()
};

}  // namespace muster
