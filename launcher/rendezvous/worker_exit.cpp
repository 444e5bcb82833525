#include "launcher/rendezvous/worker_exit.h"

#include <fmt/core.h>
#include <sys/wait.h>

#include <csignal>
#include <cstring>

#include "core/base/error.h"

namespace muster {

WorkerExit WorkerExit::from_wait_status(int wait_status) noexcept {
  WorkerExit exit;
  if (WIFSIGNALED(wait_status)) {
    exit.signal = WTERMSIG(wait_status);
  } else {
    exit.status = WEXITSTATUS(wait_status);
  }
  return exit;
}

ExitClass WorkerExit::exit_class() const noexcept {
  if (oom_killed) return ExitClass::kResource;
  if (signal != 0) return ExitClass::kSignal;
  if (status == 0) return ExitClass::kSuccess;
  switch (class_of_exit_status(status)) {
    case ErrorClass::kUser:
      return ExitClass::kUser;
    case ErrorClass::kPeer:
      return ExitClass::kPeer;
    case ErrorClass::kData:
      return ExitClass::kData;
    case ErrorClass::kResource:
      return ExitClass::kResource;
    case ErrorClass::kBug:
      return ExitClass::kBug;
    case ErrorClass::kNone:
      break;
  }
  return ExitClass::kUnknown;
}

std::string WorkerExit::text() const {
  const std::string_view name = to_string(exit_class());
  if (oom_killed) {
    return fmt::format("was killed by {} at the memory limit ({})", signal_name(signal), name);
  }
  if (signal != 0) return fmt::format("was killed by {} ({})", signal_name(signal), name);
  return fmt::format("exited {} ({})", status, name);
}

int WorkerExit::job_exit_status() const noexcept {
  if (oom_killed) return exit_status(ErrorCode::kOutOfMemory);
  if (signal != 0) return 128 + signal;
  if (status == 0) return 0;
  return exit_class() == ExitClass::kUnknown ? 1 : status;
}

std::string_view to_string(ExitClass exit_class) noexcept {
  switch (exit_class) {
    case ExitClass::kSuccess:
      return "success";
    case ExitClass::kUser:
      return "user";
    case ExitClass::kPeer:
      return "peer";
    case ExitClass::kData:
      return "data";
    case ExitClass::kResource:
      return "resource";
    case ExitClass::kBug:
      return "bug";
    case ExitClass::kSignal:
      return "signal";
    case ExitClass::kUnknown:
      break;
  }
  return "unknown";
}

std::string signal_name(int number) {
  const char* abbreviation = sigabbrev_np(number);
  return abbreviation == nullptr ? fmt::format("signal {}", number)
                                 : fmt::format("SIG{}", abbreviation);
}

int signal_number(std::string_view name) noexcept {
  if (name.starts_with("SIG")) name.remove_prefix(3);
  for (int number = 1; number < NSIG; ++number) {
    const char* abbreviation = sigabbrev_np(number);
    if (abbreviation != nullptr && name == abbreviation) return number;
  }
  return 0;
}

}  // namespace muster
