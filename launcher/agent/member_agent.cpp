#include "launcher/agent/member_agent.h"

#include <sys/epoll.h>

#include <csignal>
#include <nlohmann/json.hpp>

#include "core/base/log.h"
#include "launcher/agent/agent.h"
#include "launcher/agent/node_options.h"
#include "launcher/rendezvous/proof.h"

namespace muster {
namespace {
constexpr Duration kTellAfter = 3s;
constexpr Duration kCloseLimit = 1s;
}  // namespace

MemberAgent::MemberAgent(LocalNode& node, std::unique_ptr<Link> link, std::string host)
    : node_(node),
      link_(std::move(link)),
      host_(std::move(host)),
      member_(*link_, node.plan().spec.rendezvous.token, node_options(node.plan().spec),
              real_clock().now()),
      began_at_(real_clock().now()),
      tell_at_(began_at_ + kTellAfter) {
  node_.set_on_exit([this](const RankExit& exit) { tell_exit(exit); });
  node_.loop().add(link_->ready_fd(), EPOLLIN, [this](uint32_t) { take_events(); });
  beats_ = open_beat_timer(node_.plan().spec.policy.nodes.lease / kBeatsPerLease);
  node_.loop().add(beats_.get(), EPOLLIN, [this](uint32_t) {
    take_beat(beats_.get());
    member_.beat(real_clock().now());
  });
  node_.serve_status([this](nlohmann::ordered_json& json) {
    json["role"] = "node";
    json["host"] = host_;
    json["decision"] = member_.has_joined() ? "the host decides" : "wait: not welcome yet";
  });
}

MemberAgent::~MemberAgent() {
  node_.loop().remove(link_->ready_fd());
  node_.loop().remove(beats_.get());
}

void MemberAgent::take_events() {
  member_.take_events(real_clock().now());
  if (member_.is_kill_now()) node_.kill_now();
}

void MemberAgent::tell_exit(const RankExit& exit) {
  member_.send(message::WorkerEnded{.generation = node_.info().generation,
                                    .global_rank = exit.global_rank,
                                    .status = exit.exit.status,
                                    .signal = exit.exit.signal,
                                    .oom_killed = exit.exit.oom_killed,
                                    .age_ns = Duration(real_clock().now() - exit.at).count()});
}

int MemberAgent::run() {
  while (true) {
    if (const std::optional<int> signal = node_.stop_signal()) return leave(*signal);
    if (const std::optional<Message> order = member_.next_order()) {
      if (const auto* start = std::get_if<message::Start>(&*order)) obey(*start);
      if (const auto* stop = std::get_if<message::Stop>(&*order)) obey(*stop);
      if (const auto* end = std::get_if<message::End>(&*order)) return obey(*end);
      continue;
    }
    if (member_.failure()) return fail(*member_.failure());
    if (member_.has_joined()) {
      node_.loop().run_once(std::nullopt);
      continue;
    }
    const Duration limit = node_.plan().spec.policy.nodes.join_limit;
    const TimePoint now = real_clock().now();
    if (now >= began_at_ + limit) {
      return fail(make_error(ErrorCode::kRendezvous,
                             "rendezvous at {}: an agent must answer; none did within {}", host_,
                             format_duration(limit)));
    }
    if (now >= tell_at_ && tell_at_ != TimePoint::max()) {
      tell_at_ = TimePoint::max();
      MUSTER_LOG(kWarn, "no agent answers at {}; waiting up to {} for one", host_,
                 format_duration(limit));
    }
    node_.loop().run_once(std::min(tell_at_, began_at_ + limit));
  }
}

void MemberAgent::obey(const message::Start& start) {
  JobPlan& plan = node_.plan();
  plan.spec.run_id = member_.run_id();
  plan.token = worker_token(plan.spec.rendezvous.token, plan.spec.run_id);
  const Result<void> started = node_.start({.attempt = static_cast<int>(start.attempt),
                                            .generation = start.generation,
                                            .failures = static_cast<int>(start.failures),
                                            .place = start.place,
                                            .master_addr = start.master_addr,
                                            .master_port = static_cast<int>(start.master_port)});
  if (started.ok()) return;
  MUSTER_LOG(kError, "{}", started.error().what());
  member_.send(message::StartFailed{.generation = start.generation,
                                    .code = static_cast<int64_t>(started.error().code()),
                                    .reason = started.error().message()});
  node_.sweep();
}

void MemberAgent::obey(const message::Stop& stop) {
  MUSTER_LOG(kWarn, "{}", stop.reason);
  node_.stop(SIGTERM, Duration(stop.grace_ns), real_clock().now());
  Decision decision;
  decision.action = Decision::Action::kRestartGroup;
  decision.reason = stop.reason;
  node_.report({.decision = decision, .cause_rank = stop.cause_rank});
  node_.forget_attempt();
  member_.send(message::Stopped{stop.generation});
}

int MemberAgent::obey(const message::End& end) {
  member_.send(message::Ended{});
  const int signal = end.signal == 0 ? SIGTERM : static_cast<int>(end.signal);
  const WorkerExit first{.status = static_cast<int>(end.exit_status)};
  if (first.exit_class() == ExitClass::kBug) node_.await_own_ends(kLastWordsLimit);
  node_.stop(signal, Duration(end.grace_ns), real_clock().now());
  if (end.exit_status != 0) {
    Decision decision;
    decision.action = Decision::Action::kGiveUp;
    decision.reason = end.reason;
    node_.report({.decision = decision, .cause_rank = end.cause_rank, .is_final = true});
    if (node_.workers() == nullptr) MUSTER_LOG(kError, "{}", end.reason);
  }
  close_link();
  return node_.finish(static_cast<int>(end.exit_status), node_.info().attempt);
}

int MemberAgent::leave(int signal) {
  member_.send(message::Leave{"stopped by " + signal_name(signal)});
  node_.stop(signal, node_.plan().spec.policy.grace, real_clock().now());
  close_link();
  return node_.finish(128 + signal, node_.info().attempt);
}

int MemberAgent::fail(const Error& error) {
  MUSTER_LOG(kError, "{}", error.what());
  node_.sweep();
  return node_.finish(exit_status(error.code()), node_.info().attempt);
}

// Lets what was sent arrive.
void MemberAgent::close_link() {
  link_->close(1);
  const Deadline deadline = Deadline::after(kCloseLimit);
  while (!member_.failure() && !deadline.passed()) node_.loop().run_once(deadline.at());
}

}  // namespace muster
