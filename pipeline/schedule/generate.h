#pragma once
/// Generators of pipeline schedules: compute-only orders of F, B, I and W.
///
/// Every generator is a pure function of stages, microbatches and ranks, listed in one table.
/// Adding one: a function, a line in the table, a test of its drawing.
/// @source orders of torch.distributed.pipelining 2.13 (golden files); GPipe arXiv:1811.06965,
/// 1F1B and interleaving arXiv:2104.04473, breadth-first arXiv:2211.05953, zero bubble
/// arXiv:2401.10241, DualPipeV of deepseek-ai/DualPipe

#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "pipeline/schedule/schedule.h"

namespace muster::pipeline {

struct ScheduleShape {
  int num_stages = 1;
  int num_microbatches = 1;
  /// 0: one stage a rank, or two for the V schedules.
  int num_ranks = 0;
};

// All below: @error kInvalidArgument (throws) names the constraint and the values.

/// All forwards, then all backwards. One stage a rank.
Schedule make_gpipe(const ScheduleShape& shape);
/// At most (stages - stage) live microbatches a stage. One stage a rank; fewer microbatches than
/// stages are fine.
Schedule make_1f1b(const ScheduleShape& shape);
/// Several stages a rank, round and round. Microbatches must be a multiple of the number of rounds,
/// max(1, microbatches / ranks). With one stage a rank it is 1F1B, with 1F1B's memory.
Schedule make_interleaved_1f1b(const ScheduleShape& shape);
/// Stage after stage forward, then back, microbatches reversed: least traffic of parameters.
Schedule make_looped_bfs(const ScheduleShape& shape);
/// Interleaved with backward split into I and W, W later by the rank. With one stage a rank: ZB1P.
Schedule make_interleaved_zero_bubble(const ScheduleShape& shape);
/// Two stages a rank, back and forth; no bubble where F = I = W.
Schedule make_zbv(const ScheduleShape& shape);
/// Two stages a rank, back and forth, forwards overlapped with backwards; at least as many
/// microbatches as stages.
Schedule make_dual_pipe_v(const ScheduleShape& shape);

/// An entry of the table.
struct Generator {
  std::string_view name;   ///< as PyTorch's class: "Interleaved1F1B"
  std::string_view alias;  ///< as recipes write it: "interleaved_1f1b"
  std::string_view summary;
  StageStyle style = StageStyle::kLoop;
  int stages_per_rank = 0;  ///< 0: any number
  bool splits_backward = false;
  Schedule (*make)(const ScheduleShape& shape) = nullptr;
};
std::span<const Generator> generators();
/// The generator of a name or alias (or its part before a '_'), case ignored. @error
/// kInvalidArgument lists what exists
Result<const Generator*> find_generator(std::string_view name);
/// find_generator, then make; a broken constraint comes back as an error.
Result<Schedule> make_schedule(std::string_view name, const ScheduleShape& shape);

}  // namespace muster::pipeline
