#pragma once
/// A unix socket on which an agent tells how its job is: whoever connects gets one JSON text.
///
/// Only the user of the job can connect. It takes no orders, and a client that does not read never
/// holds the agent up.

#include <functional>
#include <memory>
#include <string>

#include "core/base/result.h"
#include "launcher/agent/event_loop.h"
#include "launcher/agent/unique_fd.h"

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
  StatusSocket(EventLoop& loop, std::string path, UniqueFd fd, std::function<std::string()> tell);
  void answer();

  EventLoop& loop_;
  const std::string path_;
  UniqueFd fd_;
  std::function<std::string()> tell_;
};

/// What the agent at `path` tells.
/// @error kNotFound nobody listens there any more; kIo, kTimeout
Result<std::string> read_status(const std::string& path);

}  // namespace muster
