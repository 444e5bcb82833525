#pragma once
/// What one rank holds of all its peers on the host: arenas, processes, where to wait.
///
/// Made once per process (per thread where ranks are threads) and shared by all groups. Arenas are
/// memfds reached through /proc, so nothing is left behind by a kill.

#include <atomic>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "core/tensor/shared_arena.h"
#include "core/tensor/tensor.h"
#include "dist/backend/shm/control.h"
#include "dist/store/store.h"

namespace muster::shm {

/// A peer's process and memory as this rank sees them.
struct Peer {
  int global_rank = 0;
  int pid = 0;
  int pidfd = -1;  ///< -1 for this process itself
  std::shared_ptr<SharedArena> arena;
};

/// Why a wait ended. kTurn: nothing yet; look at the other peers, and call again.
enum class WaitOutcome : uint8_t { kReached, kTurn, kDeadline, kPeerLost, kAborted, kPeerAborted };

/// Flags that end a wait: the peer's, seen within milliseconds, and this rank's own.
struct AbortFlags {
  const std::atomic<uint32_t>& peer;
  const std::atomic<bool>& own;
};

class Context {
 public:
  struct Options {
    std::shared_ptr<Store> store;
    int global_rank = 0;
    int world_size = 1;
    Bytes arena_capacity = 4_GiB;  ///< virtual; memory is used as it is touched
    std::string key_prefix = "shm";
  };
  /// Publishes this rank's arena and maps all others.
  /// @collective all ranks of the world @error kTimeout naming the missing ranks' keys; kPeerLost;
  /// kIo
  static Result<std::shared_ptr<Context>> open(Options options, Deadline deadline);
  ~Context();
  Context(const Context&) = delete;
  Context& operator=(const Context&) = delete;

  [[nodiscard]] SharedArena& arena() noexcept { return *own_arena_; }
  [[nodiscard]] const Peer& peer(int global_rank) const {
    return peers_[static_cast<size_t>(global_rank)];
  }
  [[nodiscard]] Store& store() noexcept { return *options_.store; }
  [[nodiscard]] const Options& options() const noexcept { return options_; }

  /// Holds tensors of a failed operation to the end: peers may still read and write their memory.
  /// @thread any
  void keep(std::vector<Tensor> tensors);

  /// A group's answer to where a rank waits for this one, if it does; nothing if not.
  using Observer = std::function<std::string(int global_rank)>;
  /// `owner` names the observer to remove_observer(), which returns when none of its calls runs.
  void add_observer(const void* owner, Observer observer);
  void remove_observer(const void* owner);
  /// Of all groups: "barrier #1 in group b at train/loop.cpp:88", several joined by " and in ", or
  /// "". @thread any
  [[nodiscard]] std::string where_it_waits(int global_rank);

  /// The value of a key of the store that `global_rank` writes when it comes to this point.
  /// @blocks until then @error kPeerLost as soon as its process has ended; kTimeout
  [[nodiscard]] Result<std::string> await_key_of(int global_rank, const std::string& key,
                                                 Deadline deadline);

  /// True once the process of `peer` has ended.
  [[nodiscard]] static bool has_ended(const Peer& peer) noexcept;

  /// Waits until `clock` shows at least `target` ticks (modulo wrap).
  /// @blocks spins briefly where cores suffice for all ranks, then parks in the kernel
  WaitOutcome wait_for(Clock& clock, uint32_t target, const Peer& peer, AbortFlags flags,
                       Deadline deadline) const;
  /// Sets the clock and wakes those who wait for it.
  static void advance(Clock& clock, uint32_t ticks) noexcept;
  /// Wakes waiters without a tick, so that they look at abort flags.
  static void wake(Clock& clock) noexcept;

 private:
  explicit Context(Options options) : options_(std::move(options)) {}

  Options options_;
  std::shared_ptr<SharedArena> own_arena_;
  std::vector<Peer> peers_;
  int spin_rounds_ = 0;
  std::mutex observers_mutex_;
  std::map<const void*, Observer> observers_;  // guarded by observers_mutex_
  std::mutex kept_mutex_;
  std::vector<Tensor> kept_;  // guarded by kept_mutex_; goes before the arena
};

}  // namespace muster::shm
