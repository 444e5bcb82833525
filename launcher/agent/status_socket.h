#pragma once
/// A unix socket on which an agent tells how its job is: whoever connects gets one JSON text.
///
/// Only the user of the job can connect. It takes no orders: a client reads and goes, and one that
/// says something, or stays, is let go and reported. None of them ever holds the agent up.

#include <functional>
#include <memory>
#include <string>

#include "core/base/result.h"
#include "dist/net/acceptor.h"
#include "dist/net/alarm.h"
#include "dist/net/reject_log.h"
#include "dist/net/strangers.h"
#include "launcher/agent/event_loop.h"

namespace muster {

class StatusSocket {
 public:
  /// Listens at `path`, mode 0600; `tell` gives the text. The loop outlives the socket.
  /// @error kIo
  static Result<std::unique_ptr<StatusSocket>> open(EventLoop& loop, const std::string& path,
                                                    std::function<std::string()> tell);
  /// Removes the socket.
  ~StatusSocket();
  StatusSocket(const StatusSocket&) = delete;
  StatusSocket& operator=(const StatusSocket&) = delete;

 private:
  enum class Kind : int { kOtherUser, kSaysSomething, kTooSlow, kTooMany };
  /// One that has its answer and has not gone yet.
  struct Client {
    net::UniqueFd fd;
    std::string name;
  };

  StatusSocket(EventLoop& loop, std::string path, net::UniqueFd fd, net::Alarm alarm,
               std::function<std::string()> tell);
  void answer_some();
  void answer(net::UniqueFd fd, const std::string& text);
  void make_room();
  void on_client(uint64_t id);
  void refuse(Client client, Kind kind, const std::string& reason);
  void expire();

  EventLoop& loop_;
  const std::string path_;
  net::Acceptor acceptor_;
  net::Alarm alarm_;
  std::function<std::string()> tell_;
  net::Strangers<Client> clients_;
  uint64_t last_id_ = 0;
  net::RejectLog refusals_;
};

/// What the agent at `path` tells.
/// @error kNotFound nobody listens there any more; kIo, kTimeout
Result<std::string> read_status(const std::string& path);

}  // namespace muster
