#include "launcher/agent/agent.h"

#include <sys/epoll.h>
#include <sys/timerfd.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <nlohmann/json.hpp>

#include "core/base/log.h"
#include "dist/store/tcp_store_server.h"
#include "launcher/agent/node_options.h"

namespace muster {
namespace {
using Action = Decision::Action;

// How long the other nodes may take to say that they know of the job's end.
constexpr Duration kAcknowledgeLimit = 2s;

int64_t cause_rank_of(const JobView& view, const Decision& decision) {
  return decision.cause ? view.exits[*decision.cause].global_rank : -1;
}

// Not when nodes come, and not when the job is told to stop.
bool has_lost_node(const JobView& view, const Decision& decision) {
  return !decision.cause && !view.stop_signal &&
         std::any_of(view.nodes.begin(), view.nodes.end(), [](const NodeView& node) {
           return node.is_in_round && !node.gone_because.empty();
         });
}

TimePoint failure_time_of(const JobView& view, const Decision& decision) {
  return decision.cause ? view.exits[*decision.cause].at : real_clock().now();
}
}  // namespace

UniqueFd open_beat_timer(Duration period) {
  UniqueFd fd(::timerfd_create(CLOCK_MONOTONIC, TFD_CLOEXEC | TFD_NONBLOCK));
  itimerspec spec{};
  spec.it_interval.tv_sec = period / 1s;
  spec.it_interval.tv_nsec = (period % 1s).count();
  spec.it_value = spec.it_interval;
  MUSTER_CHECK(fd.is_open() && ::timerfd_settime(fd.get(), 0, &spec, nullptr) == 0, ErrorCode::kIo,
               "agent: timer: {}", errno_text(errno));
  return fd;
}

void take_beat(int fd) {
  uint64_t count = 0;
  const ssize_t got = ::read(fd, &count, sizeof(count));
  static_cast<void>(got);
}

Agent::Agent(LocalNode& node, std::unique_ptr<Link> link) : node_(node), link_(std::move(link)) {
  view_.world_size = node_.plan().spec.local_world_size;
  node_.set_on_exit([this](const RankExit& exit) { view_.exits.push_back(exit); });
  if (link_ != nullptr) host_rendezvous();
  node_.serve_status([this](nlohmann::ordered_json& json) { describe(json); });
}

Agent::~Agent() {
  if (link_ != nullptr) node_.loop().remove(link_->ready_fd());
  if (beats_.is_open()) node_.loop().remove(beats_.get());
}

void Agent::host_rendezvous() {
  const JobSpec& spec = node_.plan().spec;
  coordinator_ = std::make_unique<Coordinator>(
      *link_,
      Coordinator::Options{
          .token = spec.rendezvous.token,
          .run_id = spec.run_id,
          .own = node_options(spec),
          .policy = spec.policy.nodes,
          .on_exit = [this](const NodeView& node,
                            const RankExit& exit) { note_exit_elsewhere(node, exit); }},
      view_, real_clock().now());
  node_.loop().add(link_->ready_fd(), EPOLLIN,
                   [this](uint32_t) { coordinator_->take_events(real_clock().now()); });
  beats_ = open_beat_timer(spec.policy.nodes.lease / kBeatsPerLease);
  node_.loop().add(beats_.get(), EPOLLIN, [this](uint32_t) {
    take_beat(beats_.get());
    coordinator_->beat(real_clock().now());
  });
  node_.set_on_kill_now([this] { coordinator_->kill_now(); });
}

int Agent::run() {
  while (true) {
    view_.stop_signal = node_.stop_signal();
    const TimePoint now = real_clock().now();
    if (coordinator_ != nullptr) coordinator_->expire(now);
    const Decision decision = decide(view_, node_.plan().spec.policy, now);
    note(decision);
    switch (decision.action) {
      case Action::kWait:
        node_.loop().run_once(decision.ask_again);
        break;
      case Action::kStart: {
        const Result<void> started = start_attempt();
        if (started.ok()) break;
        const int status = exit_status(started.error().code());
        if (coordinator_ != nullptr) {
          coordinator_->end({.exit_status = status, .reason = started.error().message()});
        }
        node_.sweep();
        MUSTER_LOG(kError, "{}", started.error().what());
        return finish(status);
      }
      case Action::kRestartGroup:
        restart(decision);
        break;
      case Action::kGiveUp:
        return give_up(decision);
      case Action::kFinish:
        if (coordinator_ != nullptr) coordinator_->end({.reason = decision.reason});
        node_.sweep();
        return finish(0);
    }
  }
}

void Agent::describe(nlohmann::ordered_json& json) const {
  json["role"] = coordinator_ == nullptr ? "only" : "host";
  json["decision"] = last_reason_;
  json["attempt"] = view_.attempt;
  json["failures"] = view_.failures();
  if (coordinator_ == nullptr) return;
  json["nodes"] = nlohmann::ordered_json::array();
  for (const NodeView& node : view_.nodes) {
    json["nodes"].push_back({{"name", node.options.name},
                             {"group_rank", node.is_in_round ? node.group_rank : -1},
                             {"first_rank", node.first_rank},
                             {"local_world_size", node.options.local_world_size},
                             {"in_round", node.is_in_round},
                             {"gone", node.gone_because}});
  }
}

// By this machine's clock, so that one file tells the times of all nodes.
void Agent::note_exit_elsewhere(const NodeView& node, const RankExit& exit) {
  nlohmann::ordered_json fields = {{"t_ns", exit.at.time_since_epoch().count()},
                                   {"rank", exit.global_rank},
                                   {"node", node.options.name}};
  if (exit.exit.signal != 0) {
    fields["signal"] = signal_name(exit.exit.signal);
  } else {
    fields["status"] = exit.exit.status;
  }
  fields["class"] = to_string(exit.exit.exit_class());
  fields["told"] = nullptr;
  node_.events().emit("worker_exit", fields);
}

void Agent::note(const Decision& decision) {
  if (decision.reason == last_reason_) return;
  last_reason_ = decision.reason;
  node_.events().emit("decision",
                      {{"action", to_string(decision.action)}, {"reason", decision.reason}});
  if (decision.action == Action::kRestartGroup) {
    MUSTER_LOG(kWarn, "{}", decision.reason);
  } else {
    MUSTER_LOG(kDebug, "{}", decision.reason);
  }
}

// Numbers come in blocks: one durable write for many restarts, and more when nodes come and go
// often.
Result<int64_t> Agent::next_generation() {
  JobPlan& plan = node_.plan();
  if (view_.attempt == 0) {
    generation_ = plan.first_generation;
    generations_left_ = plan.reserved_generations;
    return generation_;
  }
  if (--generations_left_ > 0 || plan.reserved_generations == 0) return ++generation_;
  generation_ = MUSTER_TRY(reserve_more_generations(plan));
  generations_left_ = plan.reserved_generations;
  return generation_;
}

Result<void> Agent::start_attempt() {
  const JobPlan& plan = node_.plan();
  const JobSpec& spec = plan.spec;
  store_.reset();
  store_ = MUSTER_TRY(TcpStoreServer::open({
      .host = spec.store_host.empty() ? spec.master_addr : spec.store_host,
      .port = spec.master_port,
      .required_token = spec.is_recipe ? plan.token : "",
      .on_reject = {},
  }));
  AttemptInfo info{.attempt = view_.attempt,
                   .generation = MUSTER_TRY(next_generation()),
                   .failures = view_.failures(),
                   .place = single_node_place(spec.local_world_size),
                   .master_addr = spec.master_addr,
                   .master_port = store_->port()};
  if (coordinator_ != nullptr) {
    info.place =
        coordinator_->start(assign_seats(view_.nodes, spec.policy.nodes, real_clock().now()),
                            {.generation = info.generation,
                             .attempt = info.attempt,
                             .failures = info.failures,
                             .place = {},
                             .master_addr = info.master_addr,
                             .master_port = info.master_port});
  }
  MUSTER_TRY(node_.start(info));
  view_.started = true;
  return {};
}

void Agent::restart(const Decision& decision) {
  const int64_t cause_rank = cause_rank_of(view_, decision);
  if (coordinator_ != nullptr) {
    coordinator_->stop(
        {.grace_ns = decision.grace.count(), .cause_rank = cause_rank, .reason = decision.reason});
  }
  node_.stop(SIGTERM, decision.grace, failure_time_of(view_, decision));
  node_.report({.decision = decision,
                .cause_rank = cause_rank,
                .is_node_lost = has_lost_node(view_, decision)});
  node_.forget_attempt();
  if (decision.cause && view_.exits[*decision.cause].exit.exit_class() == ExitClass::kData) {
    ++view_.data_restarts;
  }
  ++view_.attempt;
  if (decision.is_free) ++view_.free_restarts;
  view_.started = false;
  view_.exits.clear();
  view_.forming_since = real_clock().now();
  if (coordinator_ != nullptr) coordinator_->own_node_stopped();
}

int Agent::give_up(const Decision& decision) {
  const int64_t cause_rank = cause_rank_of(view_, decision);
  const int signal = view_.stop_signal.value_or(SIGTERM);
  if (coordinator_ != nullptr) {
    coordinator_->end({.exit_status = decision.exit_status,
                       .grace_ns = decision.grace.count(),
                       .signal = signal,
                       .cause_rank = cause_rank,
                       .reason = decision.reason});
  }
  const bool has_workers = node_.workers() != nullptr;
  // Ranks that have diverged each have their side of it to tell, and nothing waits for a restart.
  const bool is_bug =
      decision.cause && view_.exits[*decision.cause].exit.exit_class() == ExitClass::kBug;
  if (is_bug) node_.await_own_ends(kLastWordsLimit);
  node_.stop(signal, decision.grace, failure_time_of(view_, decision));
  node_.report({.decision = decision,
                .cause_rank = cause_rank,
                .is_final = true,
                .is_node_lost = has_lost_node(view_, decision)});
  if (!has_workers) MUSTER_LOG(kError, "{}", decision.reason);
  return finish(decision.exit_status);
}

int Agent::finish(int exit_status) {
  store_.reset();
  await_acknowledgements();
  return node_.finish(exit_status, view_.attempt);
}

void Agent::await_acknowledgements() {
  if (coordinator_ == nullptr) return;
  const Deadline deadline = Deadline::after(kAcknowledgeLimit);
  while (!coordinator_->is_end_acknowledged() && !deadline.passed()) {
    node_.loop().run_once(deadline.at());
  }
}

}  // namespace muster
