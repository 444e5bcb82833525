#pragma once
/// This rank's connections to all others, and the one thread that serves them.
///
/// Ranks meet through the job's store: each publishes where it listens, and a secret that only
/// those who can read the store know. The listening port is closed as soon as all peers have proved
/// themselves, so a running job has none. Channels (channel.h) share the connections.

#include <atomic>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <string>
#include <thread>
#include <unordered_map>
#include <vector>

#include "dist/backend/gloo/wire/channel.h"
#include "dist/backend/gloo/wire/connection.h"
#include "dist/backend/gloo/wire/handshake.h"
#include "dist/net/reject_log.h"
#include "dist/net/strangers.h"
#include "dist/store/store.h"

namespace muster::wire {

struct MeshOptions {
  std::shared_ptr<Store> store;
  int global_rank = 0;
  int world_size = 1;
  std::string address = "127.0.0.1";  ///< to listen on, and that peers connect to
  std::string key_prefix = "gloo";
  Duration handshake_limit = 10s;  ///< for a connection to introduce itself
  int64_t max_strangers = 1024;    ///< connections that have not; the oldest goes first
  /// Told of refused connections, once a minute for each address and kind. Default: a warning in
  /// the log. @thread the mesh's own; must not block
  std::function<void(const std::string&)> on_refuse = {};
};

class Mesh final : public FrameSink {
 public:
  /// @collective all ranks of the world
  /// @error kTimeout names who is missing; kFailedPrecondition for a listener of another job; kIo
  static Result<std::shared_ptr<Mesh>> open(MeshOptions options, Deadline deadline);
  /// Waits (a second at most) until sent messages are fetched, says goodbye, and waits until peers
  /// have read all before it; then joins the thread.
  ~Mesh() override;
  Mesh(const Mesh&) = delete;
  Mesh& operator=(const Mesh&) = delete;

  [[nodiscard]] int global_rank() const noexcept { return options_.global_rank; }

  /// The channel of the group with this identity.
  [[nodiscard]] std::shared_ptr<Channel> channel_of(const std::string& identity);
  /// Where a peer waits for this rank, in all groups: "barrier #1 in group b at
  /// train/loop.cpp:88", several joined by " and in ", or "". @thread any that holds no group's
  /// lock
  [[nodiscard]] std::string where_it_waits(int peer);
  /// Drops a channel and what still comes for it.
  void close_channel(uint64_t id);

  /// @thread any
  void send(int peer, const FrameHeader& header, std::string payload);
  void send(int peer, const FrameHeader& header, const TransferPtr& transfer);

 private:
  explicit Mesh(MeshOptions options, net::UniqueFd epoll, net::WakeUp wake_up);

  Result<void> meet(net::UniqueFd listener, Deadline deadline);
  Result<void> connect_peer(int peer, Deadline deadline);
  Result<void> await_higher_ranks(Deadline deadline);
  void install(int peer, net::UniqueFd fd);

  void run();
  void accept_strangers();
  bool accept_one();
  void on_stranger(uint64_t id);
  void refuse(const Greeting& greeting, const Refusal& refusal);
  void drop_late_strangers();
  void close_listener();
  void on_connection(int peer, uint32_t events);
  void peer_gone(int peer, PeerEnd end);
  [[nodiscard]] int poll_ms() const;
  std::shared_ptr<Channel> find_or_make(uint64_t id);

  TransferPtr find_receive(int peer, const FrameHeader& header) override;
  void on_received(const FrameHeader& header, const TransferPtr& transfer) override;
  void on_sent(const FrameHeader& header, const TransferPtr& transfer) override;
  void on_frame(int peer, const FrameHeader& header, std::string payload) override;

  const MeshOptions options_;
  const net::UniqueFd epoll_;
  const net::WakeUp wake_up_;
  std::string secret_;  // set before the thread starts
  std::atomic<bool> is_stopping_{false};
  std::atomic<bool> is_met_{false};  // all peers are connected: no listener is needed

  // By global rank; a pointer is set once and stays until the thread has ended.
  std::vector<std::unique_ptr<Connection>> connections_;
  std::vector<std::atomic<Connection*>> peers_;

  std::mutex mutex_;
  std::condition_variable changed_;
  std::unordered_map<uint64_t, std::shared_ptr<Channel>> channels_;  // guarded by mutex_
  std::set<uint64_t> closed_channels_;                               // guarded by mutex_
  std::map<int, PeerEnd> gone_;                                      // guarded by mutex_
  std::set<int> acknowledged_;                                       // guarded by mutex_
  int num_connected_ = 0;                                            // guarded by mutex_
  bool is_leaving_ = false;                                          // guarded by mutex_

  // The thread's own.
  std::optional<net::Acceptor> door_;
  net::Strangers<std::unique_ptr<Greeting>> strangers_;
  uint64_t last_stranger_ = 0;
  net::RejectLog refusals_;

  std::thread thread_;  // joined by the destructor
};

}  // namespace muster::wire
