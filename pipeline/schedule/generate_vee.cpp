// Schedules that go back and forth: rank r holds stage r and stage 2p - 1 - r, so the last rank
// turns a microbatch round without a message, and the first rank computes the loss.
#include <deque>

#include "pipeline/schedule/generate.h"
#include "pipeline/schedule/generate_internal.h"
#include "pipeline/schedule/kind_letters.h"

namespace muster::pipeline {
namespace {
using internal::check_shape;
using internal::empty_schedule;
using internal::kB;
using internal::kF;
using internal::kI;
using internal::kW;
using internal::Shape;

// Writes one rank's row. `down` is its stage on the way to the last rank, `up` the one back. Each
// kind of action of a stage goes through the microbatches in order.
class VeeRow {
 public:
  VeeRow(std::vector<Cell>& row, int down, int up, int microbatches)
      : row_(row), stages_{down, up}, microbatches_(microbatches) {}

  static constexpr size_t kDown = 0;
  static constexpr size_t kUp = 1;

  void forward(size_t way) { put(next(kF, way)); }
  void backward(size_t way) { put(next(kB, way)); }
  void input(size_t way) {
    const Action action = next(kI, way);
    waiting_.push_back({kW, action.stage, action.microbatch});
    put(action);
  }
  /// The weights of the oldest input gradient that lacks them.
  void oldest_weight() {
    put(waiting_.front());
    waiting_.pop_front();
  }
  /// The same, of one stage.
  bool weight(size_t way) {
    for (auto at = waiting_.begin(); at != waiting_.end(); ++at) {
      if (at->stage != stages_[way]) continue;
      put(*at);
      waiting_.erase(at);
      return true;
    }
    return false;
  }
  void forward_over_backward(size_t forward_way, size_t backward_way) {
    const Action forward = next(kF, forward_way);
    row_.push_back(Cell::overlap(forward, next(kB, backward_way)));
  }
  [[nodiscard]] int forwards(size_t way) const { return forwards_[way]; }
  [[nodiscard]] bool owes_weights() const { return !waiting_.empty(); }

 private:
  Action next(ActionKind kind, size_t way) {
    int& count = (kind == kF ? forwards_ : backwards_)[way];
    return {kind, stages_[way], count++};
  }
  // A plan for more microbatches than there are leaves out what does not exist.
  void put(const Action& action) {
    if (action.microbatch < microbatches_) row_.emplace_back(action);
  }

  std::vector<Cell>& row_;
  int stages_[2];
  int microbatches_;
  int forwards_[2] = {0, 0};
  int backwards_[2] = {0, 0};
  std::deque<Action> waiting_;  // W that are due
};
}  // namespace

Schedule make_zbv(const ScheduleShape& asked) {
  const Shape shape = check_shape(asked, "ZBVZeroBubble", 2);
  Schedule schedule = empty_schedule(shape, "ZBVZeroBubble");
  constexpr size_t kDown = VeeRow::kDown, kUp = VeeRow::kUp;
  // The plan needs 2p - 1 microbatches to fill; of fewer, the others are left out of it.
  const int planned = std::max(shape.microbatches, 2 * shape.ranks - 1);
  for (int rank = 0; rank < shape.ranks; ++rank) {
    VeeRow row(schedule.rows[static_cast<size_t>(rank)], rank, shape.stages - 1 - rank,
               shape.microbatches);
    const int from_turn = shape.ranks - rank;  // ranks from here to the turning point, this one too
    for (int i = 0; i < 2 * from_turn - 1; ++i) row.forward(kDown);
    for (int i = 0; i < rank; ++i) {
      row.forward(kUp);
      row.forward(kDown);
    }
    const auto turn = [&] {
      row.forward(kUp);
      row.input(kUp);
      row.weight(kUp);
    };
    for (int i = 0; i < from_turn; ++i) turn();
    while (row.forwards(kUp) < row.forwards(kDown) || row.forwards(kDown) < planned) {
      if (row.forwards(kDown) < planned) row.forward(kDown);
      row.input(kDown);
      row.weight(kDown);
      turn();
    }
    for (int i = 0; i < rank; ++i) {
      row.input(kDown);
      row.input(kUp);
    }
    for (int i = 0; i < from_turn; ++i) {
      row.input(kDown);
      row.weight(kDown);
    }
    while (row.weight(kUp)) {
    }
    while (row.weight(kDown)) {
    }
  }
  return schedule;
}

Schedule make_dual_pipe_v(const ScheduleShape& asked) {
  const Shape shape = check_shape(asked, "DualPipeV", 2);
  MUSTER_CHECK(shape.microbatches >= shape.stages, ErrorCode::kInvalidArgument,
               "DualPipeV: at least as many microbatches as stages; got {} microbatches and {} "
               "stages",
               shape.microbatches, shape.stages);
  Schedule schedule = empty_schedule(shape, "DualPipeV");
  constexpr size_t kDown = VeeRow::kDown, kUp = VeeRow::kUp;
  for (int rank = 0; rank < shape.ranks; ++rank) {
    VeeRow row(schedule.rows[static_cast<size_t>(rank)], rank, shape.stages - 1 - rank,
               shape.microbatches);
    const int behind = shape.ranks - 1 - rank;  // ranks between this one and the turning point
    // Fill: forwards down, then both ways, then the first backwards with their weights apart.
    for (int i = 0; i < 2 * behind; ++i) row.forward(kDown);
    for (int i = 0; i < rank + 1; ++i) {
      row.forward(kDown);
      row.forward(kUp);
    }
    for (int i = 0; i < behind; ++i) {
      row.input(kUp);
      row.oldest_weight();
      row.forward(kUp);
    }
    // Steady: a forward of each way over a backward of the other.
    for (int i = 0; i < shape.microbatches - 2 * shape.ranks + rank + 1; ++i) {
      if (i == 0 && behind == 0) {
        row.forward(kDown);
        row.backward(kUp);
      } else {
        row.forward_over_backward(kDown, kUp);
      }
      row.forward_over_backward(kUp, kDown);
    }
    for (int i = 0; i < behind; ++i) {
      row.backward(kUp);
      row.forward_over_backward(kUp, kDown);
    }
    // Drain: whole backwards at first, then split ones whose weights fill the bubbles.
    bool is_split = false;
    const auto drain = [&](size_t way) { is_split ? row.input(way) : row.backward(way); };
    for (int i = 0; i < rank + 1; ++i) {
      const bool is_half = i == (rank + 1) / 2;
      if (is_half && rank % 2 == 1) is_split = true;
      drain(kUp);
      if (is_half && rank % 2 == 0) is_split = true;
      drain(kDown);
    }
    for (int i = 0; i < behind; ++i) {
      row.oldest_weight();
      row.input(kDown);
    }
    while (row.owes_weights()) row.oldest_weight();
  }
  return schedule;
}
}  // namespace muster::pipeline
