#pragma once
/// How a worker ended, and the class that this puts it in.
///
/// The class is all that decide() looks at; it comes from the exit status (core/base/error.h), from
/// the signal, and from the memory-limit events of the control group. Not a log parser.

#include <cstdint>
#include <string>
#include <string_view>

namespace muster {

/// The classes of core/base/error.h and what lies outside that table.
enum class ExitClass : uint8_t {
  kSuccess,
  kUser,
  kPeer,
  kData,
  kResource,
  kBug,
  kSignal,   ///< killed by a signal that no memory limit explains
  kUnknown,  ///< a non-zero status outside the table, such as 1
};

/// The end of one process.
struct WorkerExit {
  int status = 0;           ///< exit status, when `signal` is 0
  int signal = 0;           ///< the signal that killed it, or 0
  bool oom_killed = false;  ///< SIGKILL while the memory control group counted a kill

  /// From the status that waitpid(2) gives.
  static WorkerExit from_wait_status(int wait_status) noexcept;

  [[nodiscard]] bool succeeded() const noexcept { return signal == 0 && status == 0; }
  [[nodiscard]] ExitClass exit_class() const noexcept;
  /// "exited 75 (peer)", "was killed by SIGSEGV (signal)", "was killed by SIGKILL at the memory
  /// limit (resource)".
  [[nodiscard]] std::string text() const;
  /// The exit status that the job takes from this worker: its own when it is in the error table,
  /// 71 at the memory limit, 128+n for a signal, otherwise 1.
  [[nodiscard]] int job_exit_status() const noexcept;
};

/// "user", "peer", "signal", ...
std::string_view to_string(ExitClass exit_class) noexcept;

/// "SIGTERM"; "signal 99" for one without a name.
std::string signal_name(int signal_number);

/// The number of "SIGTERM" or "TERM"; 0 when there is no such signal.
int signal_number(std::string_view name) noexcept;

}  // namespace muster
