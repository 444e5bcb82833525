#include "core/base/fault.h"

#include <fmt/format.h>
#include <unistd.h>

#include <csignal>
#include <cstdlib>
#include <mutex>
#include <thread>

#include "core/base/log.h"
#include "core/base/text.h"

namespace muster {
namespace internal {
std::atomic<bool> faults_armed{false};
}
namespace {
std::mutex faults_mutex;
std::vector<Fault> armed;  // guarded by faults_mutex
std::atomic<int64_t> current_step{-1};

std::string_view action_name(Fault::Action action) {
  switch (action) {
    case Fault::Action::kKill:
      return "kill";
    case Fault::Action::kStop:
      return "stop";
    case Fault::Action::kExit:
      return "exit";
    case Fault::Action::kDelay:
      return "delay";
    case Fault::Action::kTornWrite:
      return "torn_write";
    case Fault::Action::kDiverge:
      return "diverge";
    case Fault::Action::kKillAgent:
      return "kill_agent";
  }
  return "kill";
}

Result<int64_t> parse_int(std::string_view text) {
  const std::string copy(text);
  char* end = nullptr;
  const long long value = std::strtoll(copy.c_str(), &end, 10);
  if (copy.empty() || *end != '\0') {
    return make_error(ErrorCode::kInvalidArgument, "fault: a whole number; got \"{}\"", text);
  }
  return static_cast<int64_t>(value);
}

Result<Fault> decode_one(std::string_view text) {
  Fault fault;
  for (const std::string& field : split(text, ';')) {
    const size_t eq = field.find('=');
    if (eq == std::string::npos) {
      return make_error(ErrorCode::kInvalidArgument, "fault: fields are key=value; got \"{}\"",
                        field);
    }
    const std::string key = field.substr(0, eq);
    const std::string value = field.substr(eq + 1);
    if (key == "point")
      fault.point = value;
    else if (key == "rank")
      fault.global_rank = static_cast<int>(MUSTER_TRY(parse_int(value)));
    else if (key == "step")
      fault.step = MUSTER_TRY(parse_int(value));
    else if (key == "attempt")
      fault.attempt = static_cast<int>(MUSTER_TRY(parse_int(value)));
    else if (key == "status")
      fault.exit_status = static_cast<int>(MUSTER_TRY(parse_int(value)));
    else if (key == "delay_ns")
      fault.delay = Duration(MUSTER_TRY(parse_int(value)));
    else if (key == "do" && value == "kill")
      fault.action = Fault::Action::kKill;
    else if (key == "do" && value == "stop")
      fault.action = Fault::Action::kStop;
    else if (key == "do" && value == "exit")
      fault.action = Fault::Action::kExit;
    else if (key == "do" && value == "delay")
      fault.action = Fault::Action::kDelay;
    else if (key == "do" && value == "torn_write")
      fault.action = Fault::Action::kTornWrite;
    else if (key == "do" && value == "kill_agent")
      fault.action = Fault::Action::kKillAgent;
    else if (key == "do" && value == "diverge")
      fault.action = Fault::Action::kDiverge;
    else
      return make_error(ErrorCode::kInvalidArgument, "fault: unknown field \"{}\"", field);
  }
  if (fault.point.empty()) {
    return make_error(ErrorCode::kInvalidArgument, "fault: field point is missing in \"{}\"", text);
  }
  return fault;
}
}  // namespace

std::string encode_faults(const std::vector<Fault>& faults) {
  std::vector<std::string> parts;
  for (const Fault& fault : faults) {
    std::string part = fmt::format("point={};rank={};attempt={};do={}", fault.point,
                                   fault.global_rank, fault.attempt, action_name(fault.action));
    if (fault.step) part += fmt::format(";step={}", *fault.step);
    if (fault.action == Fault::Action::kExit) part += fmt::format(";status={}", fault.exit_status);
    if (fault.action == Fault::Action::kDelay)
      part += fmt::format(";delay_ns={}", fault.delay.count());
    parts.push_back(std::move(part));
  }
  return join(parts, "|");
}

Result<std::vector<Fault>> decode_faults(std::string_view text) {
  std::vector<Fault> faults;
  if (text.empty()) return faults;
  for (const std::string& part : split(text, '|')) faults.push_back(MUSTER_TRY(decode_one(part)));
  return faults;
}

Result<void> arm_faults_from_environment(int global_rank, int attempt) {
  const char* text = std::getenv("MUSTER_FAULTS");
  if (text == nullptr || *text == '\0') return {};
  const std::vector<Fault> all =
      MUSTER_TRY(decode_faults(text), "environment variable MUSTER_FAULTS");
  const std::lock_guard lock(faults_mutex);
  armed.clear();
  for (const Fault& fault : all) {
    if (fault.global_rank == global_rank && fault.attempt == attempt) armed.push_back(fault);
  }
  internal::faults_armed = !armed.empty();
  return {};
}

void set_fault_step(int64_t step) noexcept { current_step = step; }

namespace internal {
bool reach_fault_point(std::string_view point) {
  Fault fault;
  {
    const std::lock_guard lock(faults_mutex);
    size_t at = 0;
    for (; at < armed.size(); ++at) {
      if (armed[at].point == point && (!armed[at].step || *armed[at].step == current_step)) break;
    }
    if (at == armed.size()) return false;
    fault = armed[at];
    armed.erase(armed.begin() + static_cast<std::ptrdiff_t>(at));
    faults_armed = !armed.empty();
  }
  MUSTER_LOG(kWarn, "fault point {} at step {}: {}", point, current_step.load(),
             action_name(fault.action));
  switch (fault.action) {
    case Fault::Action::kKill:
      ::kill(::getpid(), SIGKILL);
      break;
    case Fault::Action::kStop:
      ::kill(::getpid(), SIGSTOP);
      break;
    case Fault::Action::kExit:
      ::_exit(fault.exit_status);
    case Fault::Action::kDelay:
      std::this_thread::sleep_for(fault.delay);
      break;
    case Fault::Action::kKillAgent:
      // Without an agent the parent may be anybody's shell.
      if (std::getenv("MUSTER_JOB_TOKEN_ID") == nullptr) break;
      ::kill(::getppid(), SIGKILL);
      while (true) ::pause();  // the agent's death ends its workers
    case Fault::Action::kTornWrite:
    case Fault::Action::kDiverge:
      return true;
  }
  return false;
}
}  // namespace internal
}  // namespace muster
