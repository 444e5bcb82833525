#include "launcher/rendezvous/grpc/frames.h"

namespace muster {
namespace {
using wire::Frame;

// One put for each message; from_frame below is their inverse.
void put(const message::Hello& m, Frame& frame) {
  frame.mutable_hello()->set_protocol(m.protocol);
  frame.mutable_hello()->set_nonce(m.nonce);
}
void put(const message::Challenge& m, Frame& frame) {
  frame.mutable_challenge()->set_nonce(m.nonce);
}
void put(const message::Join& m, Frame& frame) {
  wire::Join& join = *frame.mutable_join();
  join.set_proof(m.proof);
  join.set_rdzv_id(m.node.rdzv_id);
  join.set_min_nodes(m.node.min_nodes);
  join.set_max_nodes(m.node.max_nodes);
  join.set_max_restarts(m.node.max_restarts);
  join.set_job(m.node.job);
  join.set_name(m.node.name);
  join.set_local_world_size(m.node.local_world_size);
  join.set_role(m.node.role);
  join.set_wanted_rank(m.node.wanted_rank);
}
void put(const message::Welcome& m, Frame& frame) {
  frame.mutable_welcome()->set_proof(m.proof);
  frame.mutable_welcome()->set_run_id(m.run_id);
  frame.mutable_welcome()->set_lease_ns(m.lease_ns);
}
void put(const message::Refused& m, Frame& frame) {
  frame.mutable_refused()->set_code(m.code);
  frame.mutable_refused()->set_reason(m.reason);
}
void put(const message::Start& m, Frame& frame) {
  wire::Start& start = *frame.mutable_start();
  start.set_generation(m.generation);
  start.set_attempt(m.attempt);
  start.set_failures(m.failures);
  start.set_group_rank(m.place.group_rank);
  start.set_group_world_size(m.place.group_world_size);
  start.set_first_rank(m.place.first_rank);
  start.set_world_size(m.place.world_size);
  start.set_role_first_rank(m.place.role_first_rank);
  start.set_role_world_size(m.place.role_world_size);
  start.set_master_addr(m.master_addr);
  start.set_master_port(m.master_port);
}
void put(const message::Stop& m, Frame& frame) {
  wire::Stop& stop = *frame.mutable_stop();
  stop.set_generation(m.generation);
  stop.set_grace_ns(m.grace_ns);
  stop.set_cause_rank(m.cause_rank);
  stop.set_reason(m.reason);
}
void put(const message::End& m, Frame& frame) {
  wire::End& end = *frame.mutable_end();
  end.set_generation(m.generation);
  end.set_exit_status(m.exit_status);
  end.set_grace_ns(m.grace_ns);
  end.set_signal(m.signal);
  end.set_cause_rank(m.cause_rank);
  end.set_reason(m.reason);
}
void put(const message::KillNow&, Frame& frame) { frame.mutable_kill_now(); }
void put(const message::WorkerEnded& m, Frame& frame) {
  wire::WorkerEnded& ended = *frame.mutable_worker_ended();
  ended.set_generation(m.generation);
  ended.set_global_rank(m.global_rank);
  ended.set_status(m.status);
  ended.set_signal(m.signal);
  ended.set_oom_killed(m.oom_killed);
  ended.set_age_ns(m.age_ns);
}
void put(const message::StartFailed& m, Frame& frame) {
  frame.mutable_start_failed()->set_generation(m.generation);
  frame.mutable_start_failed()->set_code(m.code);
  frame.mutable_start_failed()->set_reason(m.reason);
}
void put(const message::Stopped& m, Frame& frame) {
  frame.mutable_stopped()->set_generation(m.generation);
}
void put(const message::Leave& m, Frame& frame) { frame.mutable_leave()->set_reason(m.reason); }
void put(const message::Ended&, Frame& frame) { frame.mutable_ended(); }
void put(const message::Beat&, Frame& frame) { frame.mutable_beat(); }

message::Join read(const wire::Join& join) {
  return {.proof = join.proof(),
          .node = {.rdzv_id = join.rdzv_id(),
                   .min_nodes = join.min_nodes(),
                   .max_nodes = join.max_nodes(),
                   .max_restarts = join.max_restarts(),
                   .job = join.job(),
                   .name = join.name(),
                   .local_world_size = join.local_world_size(),
                   .role = join.role(),
                   .wanted_rank = join.wanted_rank()}};
}

message::Start read(const wire::Start& start) {
  return {.generation = start.generation(),
          .attempt = start.attempt(),
          .failures = start.failures(),
          .place = {.group_rank = start.group_rank(),
                    .group_world_size = start.group_world_size(),
                    .first_rank = start.first_rank(),
                    .world_size = start.world_size(),
                    .role_first_rank = start.role_first_rank(),
                    .role_world_size = start.role_world_size()},
          .master_addr = start.master_addr(),
          .master_port = start.master_port()};
}

message::End read(const wire::End& end) {
  return {.generation = end.generation(),
          .exit_status = end.exit_status(),
          .grace_ns = end.grace_ns(),
          .signal = end.signal(),
          .cause_rank = end.cause_rank(),
          .reason = end.reason()};
}

message::WorkerEnded read(const wire::WorkerEnded& ended) {
  return {.generation = ended.generation(),
          .global_rank = ended.global_rank(),
          .status = ended.status(),
          .signal = ended.signal(),
          .oom_killed = ended.oom_killed(),
          .age_ns = ended.age_ns()};
}
}  // namespace

wire::Frame to_frame(const Message& message) {
  Frame frame;
  std::visit([&](const auto& m) { put(m, frame); }, message);
  return frame;
}

std::optional<Message> from_frame(const Frame& frame) {
  switch (frame.kind_case()) {
    case Frame::kHello:
      return message::Hello{frame.hello().protocol(), frame.hello().nonce()};
    case Frame::kChallenge:
      return message::Challenge{frame.challenge().nonce()};
    case Frame::kJoin:
      return read(frame.join());
    case Frame::kWelcome:
      return message::Welcome{frame.welcome().proof(), frame.welcome().run_id(),
                              frame.welcome().lease_ns()};
    case Frame::kRefused:
      return message::Refused{frame.refused().code(), frame.refused().reason()};
    case Frame::kStart:
      return read(frame.start());
    case Frame::kStop:
      return message::Stop{frame.stop().generation(), frame.stop().grace_ns(),
                           frame.stop().cause_rank(), frame.stop().reason()};
    case Frame::kEnd:
      return read(frame.end());
    case Frame::kKillNow:
      return message::KillNow{};
    case Frame::kWorkerEnded:
      return read(frame.worker_ended());
    case Frame::kStartFailed:
      return message::StartFailed{frame.start_failed().generation(), frame.start_failed().code(),
                                  frame.start_failed().reason()};
    case Frame::kStopped:
      return message::Stopped{frame.stopped().generation()};
    case Frame::kLeave:
      return message::Leave{frame.leave().reason()};
    case Frame::kEnded:
      return message::Ended{};
    case Frame::kBeat:
      return message::Beat{};
    case Frame::KIND_NOT_SET:
      break;
  }
  return std::nullopt;
}

}  // namespace muster
