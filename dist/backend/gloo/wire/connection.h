#pragma once
/// One authenticated connection to a peer: frames out from any thread, frames in on the mesh's.
///
/// Writing never blocks: what the socket does not take at once waits in a queue for the mesh's
/// thread. Reading goes straight into posted memory where there is some.

#include <deque>
#include <mutex>
#include <string>
#include <vector>

#include "dist/backend/gloo/wire/frame.h"
#include "dist/backend/gloo/wire/transfer.h"
#include "dist/net/sockets.h"

namespace muster::wire {

/// Where a connection's frames go. @thread the mesh's own
class FrameSink {
 public:
  virtual ~FrameSink() = default;
  /// The posted receive for a kData frame; null: none yet, and the payload comes by on_frame().
  virtual TransferPtr find_receive(int peer, const FrameHeader& header) = 0;
  /// A kData frame is in its memory.
  virtual void on_received(const FrameHeader& header, const TransferPtr& transfer) = 0;
  /// A kData frame has left.
  virtual void on_sent(const FrameHeader& header, const TransferPtr& transfer) = 0;
  /// Any other frame, or data that nobody waits for yet.
  virtual void on_frame(int peer, const FrameHeader& header, std::string payload) = 0;
};

/// Where a connection is registered for events.
struct EpollPlace {
  int epoll_fd = -1;
  uint64_t token = 0;
};

class Connection {
 public:
  Connection(int peer, net::UniqueFd fd, EpollPlace place, FrameSink& sink);

  [[nodiscard]] int peer() const noexcept { return peer_; }
  [[nodiscard]] int fd() const noexcept { return fd_.get(); }

  /// Registers for events; nothing is read before. @error kIo
  Result<void> start();
  /// Queues a small frame. @thread any
  void send(FrameHeader header, std::string payload);
  /// Queues a frame whose payload is the transfer's memory. @thread any
  void send(FrameHeader header, TransferPtr transfer);

  /// Reads what is there, at most a turn's worth; the reason when the connection is at its end.
  /// @thread the mesh's own
  Result<void> on_readable();
  /// Writes what is queued. @thread the mesh's own
  void on_writable();
  /// Wakes nobody; no write is tried after it. @thread any
  void close();

 private:
  struct Outgoing {
    FrameHeader header;
    std::string payload;
    TransferPtr transfer;
    int64_t written = 0;  // header included
  };
  struct Sent {
    FrameHeader header;
    TransferPtr transfer;
  };
  void enqueue(Outgoing item);
  std::vector<Sent> flush_locked();
  bool write_some_locked(Outgoing& item);
  void want_writable_locked(bool wanted);
  void report(const std::vector<Sent>& sent);

  Result<bool> fill();
  Result<bool> step();
  Result<bool> read_payload();
  void finish_payload();

  const int peer_;
  const net::UniqueFd fd_;
  const EpollPlace place_;
  FrameSink& sink_;

  std::mutex out_mutex_;
  std::deque<Outgoing> out_;     // guarded by out_mutex_
  bool is_started_ = false;      // guarded by out_mutex_
  bool wants_writable_ = false;  // guarded by out_mutex_
  bool is_closed_ = false;       // guarded by out_mutex_

  // The frame that is arriving; the mesh's thread only.
  std::vector<char> buffer_;
  size_t begin_ = 0, end_ = 0;
  bool in_payload_ = false;
  FrameHeader header_;
  int64_t arrived_ = 0;
  TransferPtr target_;
  std::string payload_;
};

}  // namespace muster::wire
