#include "pipeline/schedule/schedule.h"

#include <fmt/format.h>

#include <algorithm>

#include "core/base/text.h"

namespace muster::pipeline {

bool Schedule::has_messages() const noexcept {
  for (const auto& row : rows) {
    for (const Cell& cell : row) {
      for (const Action& action : cell.actions) {
        if (is_message(action.kind)) return true;
      }
    }
  }
  return false;
}

std::vector<PlacedAction> placed_actions(const Schedule& schedule) {
  std::vector<PlacedAction> out;
  for (int rank = 0; rank < schedule.num_ranks(); ++rank) {
    const auto& row = schedule.rows[static_cast<size_t>(rank)];
    for (size_t at = 0; at < row.size(); ++at) {
      for (const Action& action : row[at].actions) {
        out.push_back({action, rank, static_cast<int>(at)});
      }
    }
  }
  return out;
}

std::vector<int> ranks_of_stages(const Schedule& schedule) {
  std::vector<int> ranks(static_cast<size_t>(std::max(schedule.num_stages, 0)), -1);
  for (const PlacedAction& placed : placed_actions(schedule)) {
    if (placed.action.stage >= schedule.num_stages) continue;
    int& rank = ranks[static_cast<size_t>(placed.action.stage)];
    if (rank < 0) rank = placed.rank;
  }
  return ranks;
}

std::vector<int> stages_of_rank(const Schedule& schedule, int rank) {
  const std::vector<int> ranks = ranks_of_stages(schedule);
  std::vector<int> stages;
  for (size_t stage = 0; stage < ranks.size(); ++stage) {
    if (ranks[stage] == rank) stages.push_back(static_cast<int>(stage));
  }
  return stages;
}

Result<std::vector<int>> map_stages(int num_ranks, int num_stages, StageStyle style) {
  if (num_ranks < 1 || num_stages < num_ranks || num_stages % num_ranks != 0) {
    return make_error(ErrorCode::kInvalidArgument,
                      "map_stages: stages must be a positive multiple of ranks; got {} stages on "
                      "{} ranks",
                      num_stages, num_ranks);
  }
  std::vector<int> ranks;
  for (int stage = 0; stage < num_stages; ++stage) {
    const int along = stage % num_ranks;
    const bool is_back = style == StageStyle::kVee && stage / num_ranks % 2 == 1;
    ranks.push_back(is_back ? num_ranks - 1 - along : along);
  }
  return ranks;
}

std::vector<int64_t> microbatch_sizes(int64_t size, int parts) {
  MUSTER_CHECK(size >= 0 && parts >= 1, ErrorCode::kInvalidArgument,
               "microbatch_sizes: a size of at least 0 and one part or more; got {} and {}", size,
               parts);
  std::vector<int64_t> sizes(static_cast<size_t>(parts), size / parts);
  for (int64_t i = 0; i < size % parts; ++i) ++sizes[static_cast<size_t>(i)];
  return sizes;
}

Result<Schedule> parse_csv(std::string_view text, std::string name, int num_stages,
                           int num_microbatches) {
  Schedule schedule;
  schedule.name = std::move(name);
  schedule.num_stages = num_stages;
  schedule.num_microbatches = num_microbatches;
  while (!text.empty() && (text.back() == '\n' || text.back() == '\r')) text.remove_suffix(1);
  if (text.empty()) {
    return make_error(ErrorCode::kInvalidArgument, "schedule {}: one row a rank; got no row",
                      schedule.name);
  }
  for (const std::string& line : split(text, '\n')) {
    std::vector<Cell> row;
    for (const std::string& cell : split(line, ',')) {
      row.push_back(MUSTER_TRY(
          parse_cell(cell), fmt::format("rank {}, position {} of schedule {}", schedule.rows.size(),
                                        row.size(), schedule.name)));
    }
    schedule.rows.push_back(std::move(row));
  }
  return schedule;
}

std::string to_csv(const Schedule& schedule) {
  std::string text;
  for (const auto& row : schedule.rows) {
    std::vector<std::string> cells;
    for (const Cell& cell : row) cells.push_back(to_string(cell));
    text += join(cells, ",") + "\n";
  }
  return text;
}
}  // namespace muster::pipeline
