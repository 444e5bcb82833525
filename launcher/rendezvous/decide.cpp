#include "launcher/rendezvous/decide.h"

#include <fmt/core.h>

#include <algorithm>

#include "core/base/error.h"

namespace muster {
namespace {
using Action = Decision::Action;

// A rank that exits because a peer vanished is a victim: its kernel may close the sockets of the
// dead one, and so wake the victim, before the dead one itself can be waited for.
std::optional<size_t> find_cause(const std::vector<RankExit>& exits) {
  std::optional<size_t> victim;
  for (size_t i = 0; i < exits.size(); ++i) {
    const ExitClass exit_class = exits[i].exit.exit_class();
    if (exit_class == ExitClass::kSuccess) continue;
    if (exit_class != ExitClass::kPeer) return i;
    if (!victim) victim = i;
  }
  return victim;
}

bool is_crash(ExitClass exit_class) {
  return exit_class == ExitClass::kSignal || exit_class == ExitClass::kPeer ||
         exit_class == ExitClass::kResource;
}

// Why no restart can help, or "" when one may.
std::string why_final(const JobView& job, const RestartPolicy& policy, ExitClass exit_class) {
  switch (exit_class) {
    case ExitClass::kUser:
      return "a restart cannot help";
    case ExitClass::kBug:
      return "a bug does not go away by a restart";
    case ExitClass::kData:
      if (job.data_restarts >= policy.max_data_restarts) {
        return "the restart from the previous checkpoint did not help";
      }
      break;
    case ExitClass::kSuccess:
    case ExitClass::kPeer:
    case ExitClass::kResource:
    case ExitClass::kSignal:
    case ExitClass::kUnknown:
      break;
  }
  if (job.failures() < policy.max_restarts) return "";
  if (policy.max_restarts == 0) return "no restarts are allowed (--max-restarts 0)";
  return fmt::format("all {} restarts are used", policy.max_restarts);
}

Decision after_failure(const JobView& job, const RestartPolicy& policy, size_t cause,
                       TimePoint now) {
  const RankExit& failed = job.exits[cause];
  const ExitClass exit_class = failed.exit.exit_class();
  const std::string what = fmt::format("global rank {} {}", failed.global_rank, failed.exit.text());
  Decision decision;
  decision.cause = cause;
  const TimePoint settled = failed.at + policy.settle;
  const bool others_run = job.exits.size() < static_cast<size_t>(job.world_size);
  if (exit_class == ExitClass::kPeer && others_run && now < settled) {
    decision.reason = fmt::format("wait: {}; the lost peer's own exit is awaited", what);
    decision.ask_again = settled;
    return decision;
  }
  decision.grace = is_crash(exit_class) ? policy.crash_grace : policy.grace;
  const std::string final_because = why_final(job, policy, exit_class);
  if (final_because.empty()) {
    decision.action = Action::kRestartGroup;
    decision.reason = fmt::format(
        "restart {} of {}: {}{}", job.failures() + 1, policy.max_restarts, what,
        exit_class == ExitClass::kData ? "; from the previous complete checkpoint" : "");
    return decision;
  }
  decision.action = Action::kGiveUp;
  decision.reason = fmt::format("give up: {}; {}", what, final_because);
  decision.exit_status = failed.exit.job_exit_status();
  return decision;
}

bool has_finished(const JobView& job, const NodeView& node) {
  const int64_t end = node.first_rank + node.options.local_world_size;
  int64_t finished = 0;
  for (const RankExit& exit : job.exits) {
    if (exit.exit.succeeded() && exit.global_rank >= node.first_rank && exit.global_rank < end) {
      ++finished;
    }
  }
  return finished == node.options.local_world_size;
}

// Before a round: whether it can begin.
Decision before_round(const JobView& job, const RestartPolicy& policy, TimePoint now) {
  Decision decision;
  const Forming forming =
      form_round(job.nodes, policy.nodes, job.forming_since, job.attempt == 0, now);
  if (forming.is_complete) {
    const std::vector<Seat> seats = assign_seats(job.nodes, policy.nodes, now);
    decision.action = Action::kStart;
    decision.reason = fmt::format("start: attempt {} with {} ranks on {} nodes", job.attempt,
                                  seats.front().place.world_size, seats.size());
  } else if (forming.is_hopeless) {
    decision.action = Action::kGiveUp;
    decision.reason = "give up: " + forming.reason;
    decision.exit_status = exit_status(ErrorCode::kRendezvous);
  } else {
    decision.reason = forming.reason;
    decision.ask_again = forming.ask_again;
  }
  return decision;
}

// During a round: a node of it that is lost, or one more that may join. Both are free.
std::optional<Decision> after_nodes(const JobView& job, const RestartPolicy& policy,
                                    TimePoint now) {
  Decision decision;
  decision.action = Action::kRestartGroup;
  decision.is_free = true;
  int64_t in_round = 0;
  const NodeView* newcomer = nullptr;
  for (const NodeView& node : job.nodes) {
    const std::string lost = why_lost(node, policy.nodes, now);
    if (node.is_in_round && !lost.empty() && !has_finished(job, node)) {
      decision.grace = policy.crash_grace;
      decision.reason = fmt::format("restart: node {} is lost: {}", node.options.name, lost);
      return decision;
    }
    if (node.is_in_round) ++in_round;
    if (!node.is_in_round && node.is_ready && lost.empty() && newcomer == nullptr) newcomer = &node;
  }
  // A job that has begun to finish is not disturbed.
  if (newcomer == nullptr || in_round >= policy.nodes.max_nodes || !job.exits.empty()) return {};
  decision.grace = policy.grace;
  decision.reason = fmt::format("restart: node {} joins", newcomer->options.name);
  return decision;
}

// The next time at which a node that is there now would count as lost.
std::optional<TimePoint> next_lease_end(const JobView& job, const RestartPolicy& policy,
                                        TimePoint now) {
  std::optional<TimePoint> next;
  for (const NodeView& node : job.nodes) {
    if (node.id == 0 || !why_lost(node, policy.nodes, now).empty()) continue;
    const TimePoint end = node.heard_at + policy.nodes.lease;
    if (!next || end < *next) next = end;
  }
  return next;
}

Decision decide_now(const JobView& job, const RestartPolicy& policy, TimePoint now) {
  const std::optional<size_t> cause = find_cause(job.exits);
  const bool all_ended = job.started && job.exits.size() == static_cast<size_t>(job.world_size);
  Decision decision;
  if (all_ended && !cause) {
    decision.action = Action::kFinish;
    decision.reason = fmt::format("finish: all {} ranks exited 0", job.world_size);
  } else if (job.stop_signal) {
    decision.action = Action::kGiveUp;
    decision.reason = fmt::format("give up: stopped by {}", signal_name(*job.stop_signal));
    decision.exit_status = 128 + *job.stop_signal;
    decision.grace = policy.grace;
    decision.cause = cause;
  } else if (!job.start_failure.empty()) {
    decision.action = Action::kGiveUp;
    decision.reason = "give up: " + job.start_failure;
    decision.exit_status = job.start_failure_status;
    decision.grace = policy.crash_grace;
  } else if (!job.started && !job.nodes.empty()) {
    return before_round(job, policy, now);
  } else if (!job.started) {
    decision.action = Action::kStart;
    decision.reason = fmt::format("start: attempt {} with {} ranks", job.attempt, job.world_size);
  } else if (const std::optional<Decision> change = after_nodes(job, policy, now)) {
    return *change;
  } else if (cause) {
    return after_failure(job, policy, *cause, now);
  } else {
    decision.reason =
        fmt::format("wait: {} of {} ranks run", job.world_size - static_cast<int>(job.exits.size()),
                    job.world_size);
  }
  return decision;
}
}  // namespace

std::string_view to_string(Action action) noexcept {
  switch (action) {
    case Action::kWait:
      return "wait";
    case Action::kStart:
      return "start";
    case Action::kRestartGroup:
      return "restart";
    case Action::kFinish:
      return "finish";
    case Action::kGiveUp:
      break;
  }
  return "give_up";
}

Decision decide(const JobView& job, const RestartPolicy& policy, TimePoint now) {
  Decision decision = decide_now(job, policy, now);
  if (decision.action != Action::kWait) return decision;
  const std::optional<TimePoint> lease_end = next_lease_end(job, policy, now);
  if (lease_end && (!decision.ask_again || *lease_end < *decision.ask_again)) {
    decision.ask_again = lease_end;
  }
  return decision;
}

}  // namespace muster
