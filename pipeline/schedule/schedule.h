#pragma once
/// Schedule: what each rank of a pipeline does, in order. Pure data.
///
/// One row a rank, one cell a step of its order. A schedule is compute-only (F, B, I, W) or lowered
/// (with messages and, for sharded stages, UNSHARD, RESHARD, REDUCE_GRAD). Stages are numbered
/// along the model; which rank holds a stage follows from the rows.

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "pipeline/schedule/action.h"

namespace muster::pipeline {

struct Schedule {
  std::string name;  ///< "1F1B"; a file's path for one that was read
  int num_stages = 0;
  int num_microbatches = 0;
  std::vector<std::vector<Cell>> rows;  ///< by rank

  [[nodiscard]] int num_ranks() const noexcept { return static_cast<int>(rows.size()); }
  /// True when some action sends or receives.
  [[nodiscard]] bool has_messages() const noexcept;
  bool operator==(const Schedule&) const = default;
};

/// An action with its place in the schedule.
struct PlacedAction {
  Action action;
  int rank = 0;
  int position = 0;  ///< index of the cell in its row, from 0, idle cells counted
};

/// All actions, rank by rank in order; parts of a cell in the order they are written.
std::vector<PlacedAction> placed_actions(const Schedule& schedule);

/// The rank of each stage, -1 for one that no row names. A stage named by two rows belongs to the
/// first.
std::vector<int> ranks_of_stages(const Schedule& schedule);
/// The stages that a rank holds, ascending.
std::vector<int> stages_of_rank(const Schedule& schedule, int rank);

/// How stages go to ranks: round and round (0 1 0 1), or back and forth (0 1 1 0).
enum class StageStyle : uint8_t { kLoop, kVee };
/// The rank of each stage.
/// @error kInvalidArgument stages must be a positive multiple of ranks
Result<std::vector<int>> map_stages(int num_ranks, int num_stages, StageStyle style);

/// Sizes of `parts` microbatches of `size` samples, as torch.tensor_split cuts: the first
/// size % parts are one larger; some may be empty.
std::vector<int64_t> microbatch_sizes(int64_t size, int parts);

/// Reads PyTorch's CSV: one row a rank, blank cells idle. Any action kind; `name` goes into
/// messages. Stages and microbatches are taken as told, not guessed.
/// @error kInvalidArgument names row, cell and what does not parse
Result<Schedule> parse_csv(std::string_view text, std::string name, int num_stages,
                           int num_microbatches);
std::string to_csv(const Schedule& schedule);

}  // namespace muster::pipeline
