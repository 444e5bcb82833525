#pragma once
/// One group's share of the mesh: frames are told apart by channel, transfers by (peer, slot).
///
/// Ranks here are global ranks. A channel exists from the first frame that names it, so a peer may
/// be ahead; what arrives before this rank opened it is kept in order.

#include <condition_variable>
#include <deque>
#include <map>
#include <mutex>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "core/base/time.h"
#include "dist/backend/gloo/wire/frame.h"
#include "dist/backend/gloo/wire/transfer.h"

namespace muster::wire {

class Mesh;

/// How a peer's connection ended.
struct PeerEnd {
  bool politely = false;  ///< it said goodbye; all that it had to say has arrived
  std::string reason;     ///< "has left the job", "has ended: it closed its connection"
};

/// Told of what arrives on a channel, in the order of each peer. @thread the mesh's own
class ChannelListener {
 public:
  virtual ~ChannelListener() = default;
  /// kContract, kMessage or kNotice.
  virtual void on_frame(int peer, const FrameHeader& header, const std::string& payload) = 0;
  virtual void on_peer_gone(int peer, const PeerEnd& end) = 0;
  /// Where `peer` waits for this rank in the listener's group, or "". @thread any
  [[nodiscard]] virtual std::string where_it_waits(int peer) = 0;
};

class Channel {
 public:
  Channel(Mesh& mesh, uint64_t id) : mesh_(mesh), id_(id) {}
  Channel(const Channel&) = delete;
  Channel& operator=(const Channel&) = delete;

  [[nodiscard]] uint64_t id() const noexcept { return id_; }
  [[nodiscard]] Mesh& mesh() const noexcept { return mesh_; }

  /// Tells the members that this rank is here, and waits for them.
  /// @error kTimeout names who is missing; kPeerLost
  Result<void> open(const std::vector<int>& members, int own_rank, Deadline deadline);
  /// From here on `listener` is told, first of what was kept. detach() returns when no call into
  /// it runs any more; what comes later is dropped.
  void attach(ChannelListener* listener);
  void detach();

  /// Queues a small frame. @thread any
  void send(int peer, FrameKind kind, uint64_t slot, std::string payload, int64_t aux = 0);
  /// Queues memory for the receive that the peer posts under `slot`. @thread any
  void post_send(uint64_t slot, const TransferPtr& transfer);
  /// Offers memory for what the peer sends under `slot`. @thread any
  void post_receive(uint64_t slot, const TransferPtr& transfer);

  /// Returns when `reached` holds (true), or when the channel failed or one of `transfers` never
  /// will be done because its peer is gone (false). @blocks
  bool wait(const std::vector<TransferPtr>& transfers, const std::function<bool()>& reached);
  /// Ends all waits, now and later.
  void fail();
  /// The members that are gone, in order; a wait may end before the listener is told.
  [[nodiscard]] std::vector<std::pair<int, PeerEnd>> gone();
  /// True while a peer that is there has not fetched a message whose memory is the channel's.
  [[nodiscard]] bool has_unfetched();

  // The mesh's side. @thread the mesh's own
  TransferPtr find_receive(int peer, uint64_t slot);
  void finish(const TransferPtr& transfer);
  void handle(int peer, const FrameHeader& header, std::string payload);
  void peer_gone(int peer, const PeerEnd& end);
  /// The listener's answer. @thread any
  [[nodiscard]] std::string where_it_waits(int peer);

 private:
  using Place = std::pair<int, uint64_t>;  // peer, slot
  struct Kept {
    int peer;
    FrameHeader header;
    std::string payload;
  };
  void handle_ready(int peer, uint64_t slot);
  void handle_early_data(int peer, uint64_t slot, std::string payload);
  void send_data(uint64_t slot, const TransferPtr& transfer);

  Mesh& mesh_;
  const uint64_t id_;

  std::mutex mutex_;
  std::condition_variable changed_;
  std::map<Place, std::deque<TransferPtr>> sends_, receives_;  // guarded by mutex_
  std::map<Place, int> ready_;                                 // guarded by mutex_
  std::map<Place, std::deque<std::string>> early_;             // guarded by mutex_
  std::set<int> opened_;                                       // guarded by mutex_
  std::vector<std::pair<int, PeerEnd>> gone_;                  // guarded by mutex_
  bool is_failed_ = false;                                     // guarded by mutex_

  std::mutex delivery_mutex_;            // held while the listener is called; before mutex_
  ChannelListener* listener_ = nullptr;  // guarded by delivery_mutex_
  bool is_detached_ = false;             // guarded by delivery_mutex_
  std::deque<Kept> kept_;                // guarded by delivery_mutex_
};

}  // namespace muster::wire
