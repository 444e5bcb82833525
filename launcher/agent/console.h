#pragma once
/// The agent's own stdout or stderr, written to without ever blocking the agent.
///
/// What cannot be written now is kept and written when the reader is ready; above kHighWater the
/// streams that feed this console are paused, so a slow terminal slows workers but neither the
/// supervision nor the files. Whole lines of several ranks never mix. Not for the agent's own
/// messages, which go through core/base/log.h.

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>

#include "core/base/time.h"
#include "launcher/agent/event_loop.h"

namespace muster {

class Console {
 public:
  static constexpr size_t kHighWater = size_t{1} << 20;

  /// Writes to `fd`, which stays the caller's. `on_drained` is called when a full console has room
  /// again.
  Console(EventLoop& loop, int fd);
  ~Console();
  Console(const Console&) = delete;
  Console& operator=(const Console&) = delete;

  void set_on_drained(std::function<void()> on_drained) { on_drained_ = std::move(on_drained); }

  /// Bytes as they are.
  void write_raw(std::string_view bytes);
  /// A line or, without its end, a piece of one. The prefix is left out where a piece continues the
  /// same owner's line; a line that another owner has left open is ended first.
  void write_piece(int owner, std::string_view prefix, std::string_view piece);

  [[nodiscard]] bool is_full() const noexcept { return buffer_.size() - written_ > kHighWater; }

  /// Writes what is kept.
  /// @blocks until all is written, the reader is gone, or it has taken nothing until `deadline`
  void flush(Deadline deadline);

 private:
  void push();
  bool write_some();
  void close();

  EventLoop& loop_;
  int fd_;
  bool pollable_;
  bool armed_ = false;
  bool closed_ = false;
  std::string buffer_;
  size_t written_ = 0;
  int open_owner_ = -1;  ///< whose line has no end yet; -1 none
  std::function<void()> on_drained_;
};

}  // namespace muster
