#pragma once
/// The outputs of all workers of one attempt: pipes read by the agent, written to files and
/// console.
///
/// Files are byte-exact to the last byte that a worker wrote, however it died: the pipe outlives
/// the worker, and drain() runs when no writer is left. Not a log parser.

#include <array>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "core/base/result.h"
#include "launcher/agent/console.h"
#include "launcher/agent/event_loop.h"
#include "launcher/agent/unique_fd.h"

namespace muster {

/// Where one stream of one worker goes.
struct StreamPlan {
  enum class ToConsole : uint8_t { kNo, kRaw, kPrefixed };
  std::string file;  ///< created or truncated; "" = none
  ToConsole to_console = ToConsole::kRaw;
  std::string prefix;  ///< of each line, for kPrefixed
};

/// Both streams of one worker: stdout, stderr.
using RankPlan = std::array<StreamPlan, 2>;

/// The newest bytes of a stream.
class Tail {
 public:
  static constexpr size_t kNbytes = size_t{64} << 10;
  void append(std::string_view bytes);
  /// The last `count` lines, the oldest first.
  [[nodiscard]] std::vector<std::string> last_lines(size_t count) const;

 private:
  std::string bytes_;
};

class LogPump {
 public:
  /// Makes the pipes and files of all ranks and watches them in `loop`; both outlive the pump.
  /// @error kIo, kNotFound a file or pipe cannot be made; names it
  static Result<std::unique_ptr<LogPump>> open(EventLoop& loop, std::array<Console*, 2> consoles,
                                               const std::vector<RankPlan>& plans);
  ~LogPump();

  /// The end of a pipe that a worker gets as its stdout (0) or stderr (1).
  [[nodiscard]] int worker_fd(int local_rank, int stream) const;
  /// Closes the workers' ends in this process; call it when all are started.
  void close_worker_ends();

  /// Reads all that is in the pipes and ends open lines. Call it when every writer is dead.
  void drain();

  /// Starts again what a full console had paused.
  void resume();

  [[nodiscard]] std::vector<std::string> last_lines(int local_rank, int stream, size_t count) const;

  /// Bytes that a file could not take, and why, for the first of them.
  [[nodiscard]] int64_t lost_nbytes() const noexcept { return lost_nbytes_; }
  [[nodiscard]] const std::string& first_error() const noexcept { return first_error_; }

 private:
  struct Stream;
  LogPump(EventLoop& loop, std::array<Console*, 2> consoles);
  Result<void> add_stream(int owner, int stream, const StreamPlan& plan);
  bool read_once(Stream& stream);
  void to_file(Stream& stream, std::string_view bytes);
  void to_console(Stream& stream, std::string_view bytes);
  void end_stream(Stream& stream);

  EventLoop& loop_;
  std::array<Console*, 2> consoles_;
  std::vector<std::unique_ptr<Stream>> streams_;  ///< rank-major, stdout before stderr
  int64_t lost_nbytes_ = 0;
  std::string first_error_;
};

}  // namespace muster
