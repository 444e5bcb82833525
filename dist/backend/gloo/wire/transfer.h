#pragma once
/// Memory that a connection reads from or writes to while an operation is in flight.
///
/// Whoever posted it may take the memory away at any time by cancel(); the connection then goes on
/// with zeros, or drops what arrives, so that the frames behind stay in step.

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>

namespace muster::wire {

class Transfer {
 public:
  /// `peer` is a global rank; `on_done` runs on the thread that moved the last byte, without locks.
  Transfer(int peer, void* memory, int64_t nbytes, std::function<void()> on_done = {})
      : peer_(peer),
        nbytes_(nbytes),
        memory_(static_cast<std::byte*>(memory)),
        on_done_(std::move(on_done)) {}
  /// With memory of its own, for sends that outlive the caller's.
  Transfer(int peer, std::unique_ptr<std::byte[]> owned, int64_t nbytes)
      : peer_(peer), nbytes_(nbytes), memory_(owned.get()), owned_(std::move(owned)) {}

  [[nodiscard]] int peer() const noexcept { return peer_; }
  [[nodiscard]] int64_t nbytes() const noexcept { return nbytes_; }
  [[nodiscard]] bool owns_memory() const noexcept { return owned_ != nullptr; }
  [[nodiscard]] bool done() const noexcept { return done_.load(std::memory_order_acquire); }

  /// Takes the memory away; nobody touches it after this returns. @thread any
  void cancel() {
    const std::lock_guard lock(pin_);
    memory_ = nullptr;
  }
  /// Calls `use(memory)` with the memory held in place; null after cancel().
  template <typename Use>
  auto with_memory(const Use& use) {
    const std::lock_guard lock(pin_);
    return use(memory_);
  }
  /// Called once by the connection, under the channel's lock or before it is taken.
  void finish() noexcept { done_.store(true, std::memory_order_release); }
  void notify() const {
    if (on_done_) on_done_();
  }

 private:
  const int peer_;
  const int64_t nbytes_;
  std::mutex pin_;
  std::byte* memory_;  // guarded by pin_
  const std::unique_ptr<std::byte[]> owned_;
  const std::function<void()> on_done_;
  std::atomic<bool> done_{false};
};

using TransferPtr = std::shared_ptr<Transfer>;

}  // namespace muster::wire
