#pragma once
/// Proves that a schedule can be run, or names every place where it cannot. Pure.
///
/// Each stage is on one rank; each microbatch goes forward once and backward once on each stage (B,
/// or I and W), in an order that gives every action its inputs; every message has its other end;
/// nobody waits in a circle. Works on compute-only and on lowered schedules.

#include <string>
#include <vector>

#include "pipeline/schedule/schedule.h"

namespace muster::pipeline {

/// When a send is over.
enum class Transport : uint8_t {
  kRendezvous,  ///< when its receive is reached: what runs here runs on any transport
  kBuffered,    ///< at once: muster's process groups, up to what their buffers hold
};

struct ValidateOptions {
  int num_ranks = 0;  ///< 0: as many as there are rows
  Transport transport = Transport::kRendezvous;
  /// Receives must be posted in the order in which the peer sends. Needed only where messages have
  /// no tag; muster's have one.
  bool match_by_order = false;
  /// Most microbatches whose activations a rank may keep at once, a stage each; by rank. Empty: no
  /// bound.
  std::vector<int> max_live = {};
  /// Forwards without backwards, for evaluation.
  bool forward_only = false;
};

/// True for a plan as PyTorch's runtime executes it: with messages, and with UNSHARD, RESHARD and
/// REDUCE_GRAD. That runtime's sends do not wait, and it writes plans (with deferred receives) that
/// would wait in a circle under rendezvous.
[[nodiscard]] bool is_executable_plan(const Schedule& schedule);

/// One place that is wrong.
struct Fault {
  int rank = -1;      ///< -1: the schedule as a whole
  int position = -1;  ///< index of the cell; the length of the row for what is missing at its end
  std::string action;
  std::string reason;
  bool operator==(const Fault&) const = default;
};
/// "rank 0, position 3, 0F1: ...".
std::string to_string(const Fault& fault);

/// All faults; waits and memory are looked at only when everything else is right.
std::vector<Fault> find_faults(const Schedule& schedule, const ValidateOptions& options = {});

/// @error kInvalidArgument the first fault, and how many there are
Result<void> validate(const Schedule& schedule, const ValidateOptions& options = {});

}  // namespace muster::pipeline
