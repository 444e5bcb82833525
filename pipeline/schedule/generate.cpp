#include "pipeline/schedule/generate.h"

#include <fmt/format.h>

#include <algorithm>
#include <cctype>

#include "core/base/text.h"
#include "pipeline/schedule/generate_internal.h"
#include "pipeline/schedule/kind_letters.h"

namespace muster::pipeline {
namespace internal {

Shape check_shape(const ScheduleShape& shape, const char* name, int stages_per_rank) {
  Shape out;
  out.stages = shape.num_stages;
  out.microbatches = shape.num_microbatches;
  out.ranks =
      shape.num_ranks > 0 ? shape.num_ranks : shape.num_stages / std::max(stages_per_rank, 1);
  MUSTER_CHECK(
      out.stages >= 1 && out.microbatches >= 1 && out.ranks >= 1 && out.stages % out.ranks == 0,
      ErrorCode::kInvalidArgument,
      "{}: stages must be a positive multiple of ranks, with one microbatch or more; got "
      "{} stages, {} ranks, {} microbatches",
      name, shape.num_stages, shape.num_ranks, shape.num_microbatches);
  out.per_rank = out.stages / out.ranks;
  MUSTER_CHECK(stages_per_rank == 0 || out.per_rank == stages_per_rank, ErrorCode::kInvalidArgument,
               "{}: exactly {} stage(s) a rank; got {} stages on {} ranks", name, stages_per_rank,
               out.stages, out.ranks);
  return out;
}

Schedule empty_schedule(const Shape& shape, const char* name) {
  Schedule schedule;
  schedule.name = name;
  schedule.num_stages = shape.stages;
  schedule.num_microbatches = shape.microbatches;
  schedule.rows.resize(static_cast<size_t>(shape.ranks));
  return schedule;
}
}  // namespace internal

namespace {
using internal::check_shape;
using internal::empty_schedule;
using internal::kB;
using internal::kF;
using internal::kI;
using internal::kW;
using internal::Shape;

// The i-th forward (or backward) of a rank that visits its stages in rounds: each round runs
// `per_round` microbatches through every stage of the rank.
class RoundOrder {
 public:
  RoundOrder(const Shape& shape, int rank, const char* name) : shape_(shape), rank_(rank) {
    const int rounds = std::max(1, shape.microbatches / shape.ranks);
    MUSTER_CHECK(shape.microbatches % rounds == 0, ErrorCode::kInvalidArgument,
                 "{}: microbatches must be a multiple of the {} rounds (microbatches / ranks); got "
                 "{} microbatches on {} ranks; {} or {} would do",
                 name, rounds, shape.microbatches, shape.ranks,
                 shape.microbatches / shape.ranks * shape.ranks,
                 (shape.microbatches / shape.ranks + 1) * shape.ranks);
    per_round_ = shape.microbatches / rounds;
  }

  [[nodiscard]] int per_round() const noexcept { return per_round_; }
  [[nodiscard]] Action forward(int i) const { return at(kF, i, i / per_round_ % shape_.per_rank); }
  [[nodiscard]] Action backward(ActionKind kind, int i) const {
    return at(kind, i, shape_.per_rank - 1 - i / per_round_ % shape_.per_rank);
  }

 private:
  [[nodiscard]] Action at(ActionKind kind, int i, int chunk) const {
    const int round = i / (per_round_ * shape_.per_rank);
    return {kind, chunk * shape_.ranks + rank_, round * per_round_ + i % per_round_};
  }

  Shape shape_;
  int rank_;
  int per_round_ = 1;
};
}  // namespace

Schedule make_gpipe(const ScheduleShape& asked) {
  const Shape shape = check_shape(asked, "GPipe", 1);
  Schedule schedule = empty_schedule(shape, "GPipe");
  for (int stage = 0; stage < shape.stages; ++stage) {
    auto& row = schedule.rows[static_cast<size_t>(stage)];
    for (int m = 0; m < shape.microbatches; ++m) row.emplace_back(Action{kF, stage, m});
    for (int m = 0; m < shape.microbatches; ++m) row.emplace_back(Action{kB, stage, m});
  }
  return schedule;
}

Schedule make_1f1b(const ScheduleShape& asked) {
  const Shape shape = check_shape(asked, "1F1B", 1);
  Schedule schedule = empty_schedule(shape, "1F1B");
  for (int stage = 0; stage < shape.stages; ++stage) {
    auto& row = schedule.rows[static_cast<size_t>(stage)];
    const int ahead = std::min(shape.microbatches, shape.stages - stage);
    for (int m = 0; m < ahead; ++m) row.emplace_back(Action{kF, stage, m});
    for (int m = 0; m < shape.microbatches; ++m) {
      row.emplace_back(Action{kB, stage, m});
      if (m + ahead < shape.microbatches) row.emplace_back(Action{kF, stage, m + ahead});
    }
  }
  return schedule;
}

Schedule make_interleaved_1f1b(const ScheduleShape& asked) {
  constexpr const char* kName = "Interleaved1F1B";
  const Shape shape = check_shape(asked, kName, 0);
  if (shape.per_rank == 1) {
    Schedule schedule = make_1f1b(asked);
    schedule.name = kName;
    return schedule;
  }
  Schedule schedule = empty_schedule(shape, kName);
  const int total = shape.microbatches * shape.per_rank;
  for (int rank = 0; rank < shape.ranks; ++rank) {
    auto& row = schedule.rows[static_cast<size_t>(rank)];
    const RoundOrder order(shape, rank, kName);
    const int ahead =
        std::min(total, (shape.per_rank - 1) * order.per_round() + 2 * (shape.ranks - 1 - rank));
    for (int i = 0; i < ahead; ++i) row.emplace_back(order.forward(i));
    for (int i = 0; i < total; ++i) {
      if (i + ahead < total) row.emplace_back(order.forward(i + ahead));
      row.emplace_back(order.backward(kB, i));
    }
  }
  return schedule;
}

Schedule make_looped_bfs(const ScheduleShape& asked) {
  const Shape shape = check_shape(asked, "LoopedBFS", 0);
  Schedule schedule = empty_schedule(shape, "LoopedBFS");
  for (int rank = 0; rank < shape.ranks; ++rank) {
    auto& row = schedule.rows[static_cast<size_t>(rank)];
    for (int chunk = 0; chunk < shape.per_rank; ++chunk) {
      const int stage = chunk * shape.ranks + rank;
      for (int m = 0; m < shape.microbatches; ++m) row.emplace_back(Action{kF, stage, m});
    }
    for (int chunk = shape.per_rank - 1; chunk >= 0; --chunk) {
      const int stage = chunk * shape.ranks + rank;
      for (int m = shape.microbatches - 1; m >= 0; --m) row.emplace_back(Action{kB, stage, m});
    }
  }
  return schedule;
}

Schedule make_interleaved_zero_bubble(const ScheduleShape& asked) {
  constexpr const char* kName = "InterleavedZeroBubble";
  const Shape shape = check_shape(asked, kName, 0);
  Schedule schedule = empty_schedule(shape, kName);
  const int total = shape.microbatches * shape.per_rank;
  for (int rank = 0; rank < shape.ranks; ++rank) {
    auto& row = schedule.rows[static_cast<size_t>(rank)];
    const RoundOrder order(shape, rank, kName);
    const int ahead =
        std::min(total, (shape.per_rank - 1) * order.per_round() + shape.ranks - 1 - rank);
    for (int i = 0; i < ahead; ++i) row.emplace_back(order.forward(i));
    // The weights of backward i are done once `rank` further backwards have started.
    for (int i = 0; i < total; ++i) {
      if (i + ahead < total) row.emplace_back(order.forward(i + ahead));
      row.emplace_back(order.backward(kI, i));
      if (i >= rank) row.emplace_back(order.backward(kW, i - rank));
    }
    for (int i = std::max(0, total - rank); i < total; ++i) {
      row.emplace_back(order.backward(kW, i));
    }
  }
  return schedule;
}

namespace {
constexpr Generator kGenerators[] = {
    {"GPipe", "gpipe", "all forwards, then all backwards", StageStyle::kLoop, 1, false, make_gpipe},
    {"1F1B", "1f1b", "one forward, one backward; least memory", StageStyle::kLoop, 1, false,
     make_1f1b},
    {"Interleaved1F1B", "interleaved_1f1b", "1F1B over several stages a rank; smaller bubble",
     StageStyle::kLoop, 0, false, make_interleaved_1f1b},
    {"LoopedBFS", "bfs", "stage by stage over several stages a rank", StageStyle::kLoop, 0, false,
     make_looped_bfs},
    {"InterleavedZeroBubble", "zero_bubble", "interleaved, backward split into I and W",
     StageStyle::kLoop, 0, true, make_interleaved_zero_bubble},
    {"ZBVZeroBubble", "zbv", "two stages a rank back and forth, split backward", StageStyle::kVee,
     2, true, make_zbv},
    {"DualPipeV", "dual_pipe_v", "two stages a rank back and forth, F over B", StageStyle::kVee, 2,
     true, make_dual_pipe_v},
};

bool equal_without_case(std::string_view a, std::string_view b) {
  return std::equal(a.begin(), a.end(), b.begin(), b.end(), [](char x, char y) {
    return std::tolower(static_cast<unsigned char>(x)) ==
           std::tolower(static_cast<unsigned char>(y));
  });
}
}  // namespace

std::span<const Generator> generators() { return kGenerators; }

Result<const Generator*> find_generator(std::string_view name) {
  std::vector<std::string> names;
  for (const Generator& generator : kGenerators) {
    // "interleaved" and "zero" are short for interleaved_1f1b and zero_bubble.
    const bool is_short = generator.alias.size() > name.size() &&
                          generator.alias[name.size()] == '_' &&
                          equal_without_case(name, generator.alias.substr(0, name.size()));
    if (is_short || equal_without_case(name, generator.name) ||
        equal_without_case(name, generator.alias)) {
      return &generator;
    }
    names.emplace_back(generator.alias);
  }
  const std::string near = nearest_name(name, names);
  return make_error(ErrorCode::kInvalidArgument,
                    "schedule: the name must be one of {}; got \"{}\"{}", join(names), name,
                    near.empty() ? "" : fmt::format("; did you mean \"{}\"?", near));
}

Result<Schedule> make_schedule(std::string_view name, const ScheduleShape& shape) {
  const Generator* generator = MUSTER_TRY(find_generator(name));
  return catch_error([&] { return generator->make(shape); });
}
}  // namespace muster::pipeline
