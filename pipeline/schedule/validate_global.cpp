#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <optional>
#include <set>

#include "core/base/text.h"
#include "pipeline/schedule/validate_internal.h"

namespace muster::pipeline::internal {
namespace {
// Runs all rows side by side. A cell is over when all of its actions can be; messages of one cell
// are posted together.
class Progress {
 public:
  Progress(const Schedule& schedule, Transport transport)
      : schedule_(schedule),
        transport_(transport),
        rank_of_(ranks_of_stages(schedule)),
        has_messages_(schedule.has_messages()),
        at_(schedule.rows.size()) {}

  /// Nothing, or the circle of ranks in which each waits for the next.
  std::vector<Fault> run() {
    for (bool moved = true; moved;) {
      moved = false;
      for (size_t rank = 0; rank < at_.size(); ++rank) {
        while (!is_over(rank)) {
          for (const Action& action : cell(rank).actions) {
            moved |= is_message(action.kind) && reached_.insert(action).second;
          }
          if (blocker(rank)) break;
          for (const Action& action : cell(rank).actions) done_.insert(action);
          ++at_[rank];
          moved = true;
        }
      }
    }
    return circle();
  }

 private:
  [[nodiscard]] bool is_over(size_t rank) const { return at_[rank] == schedule_.rows[rank].size(); }
  [[nodiscard]] const Cell& cell(size_t rank) const { return schedule_.rows[rank][at_[rank]]; }

  // What the current cell of `rank` waits for: one of its actions, and the one it needs.
  struct Blocker {
    Action own;
    Action other;
  };
  [[nodiscard]] std::optional<Blocker> blocker(size_t rank) const {
    for (const Action& action : cell(rank).actions) {
      const auto [kind, stage, m] = action;
      if (is_message(kind)) {
        if (is_send(kind) && transport_ == Transport::kBuffered) continue;
        const Action other = other_end(action);
        if (!reached_.contains(other)) return Blocker{action, other};
      } else if (has_messages_) {
        continue;  // its receive stands before it in the row
      } else if (kind == ActionKind::kForward && stage > 0) {
        const Action other{kind, stage - 1, m};
        if (!is_done(other, rank)) return Blocker{action, other};
      } else if (gives_input_grad(kind) && stage + 1 < schedule_.num_stages) {
        const Action whole{ActionKind::kBackward, stage + 1, m};
        const Action split{ActionKind::kBackwardInput, stage + 1, m};
        if (is_done(whole, rank) || is_done(split, rank)) continue;
        return Blocker{action, stands(split) ? split : whole};
      }
    }
    return std::nullopt;
  }
  // Actions of the own row stand before; validation saw to that.
  [[nodiscard]] bool is_done(const Action& action, size_t rank) const {
    return rank_of_[static_cast<size_t>(action.stage)] == static_cast<int>(rank) ||
           done_.contains(action);
  }
  [[nodiscard]] bool stands(const Action& action) const {
    const auto& row = schedule_.rows[rank_of(action)];
    return std::any_of(row.begin(), row.end(), [&](const Cell& cell) {
      return std::find(cell.actions.begin(), cell.actions.end(), action) != cell.actions.end();
    });
  }
  [[nodiscard]] size_t rank_of(const Action& action) const {
    return static_cast<size_t>(rank_of_[static_cast<size_t>(action.stage)]);
  }

  std::vector<Fault> circle() const {
    size_t rank = 0;
    while (rank < at_.size() && is_over(rank)) ++rank;
    if (rank == at_.size()) return {};
    // From any rank that waits, the way of waiting leads into the circle.
    std::vector<size_t> way;
    while (std::find(way.begin(), way.end(), rank) == way.end()) {
      way.push_back(rank);
      rank = rank_of(blocker(rank)->other);
    }
    way.erase(way.begin(), std::find(way.begin(), way.end(), rank));
    std::vector<std::string> parts;
    for (const size_t member : way) {
      const Blocker waits = *blocker(member);
      parts.push_back(fmt::format("rank {} waits at position {}, {}, for {} of rank {}", member,
                                  at_[member], to_string(waits.own), to_string(waits.other),
                                  rank_of(waits.other)));
    }
    std::string reason = "ranks wait in a circle: " + join(parts, "; ");
    if (has_messages_ && transport_ == Transport::kRendezvous &&
        Progress(schedule_, Transport::kBuffered).run().empty()) {
      reason += "; it would run where sends are buffered";
    }
    return {{static_cast<int>(way.front()), static_cast<int>(at_[way.front()]),
             to_string(blocker(way.front())->own), std::move(reason)}};
  }

  const Schedule& schedule_;
  Transport transport_;
  std::vector<int> rank_of_;
  bool has_messages_;
  std::vector<size_t> at_;
  std::set<Action> reached_;  // messages of current and earlier cells
  std::set<Action> done_;
};
}  // namespace

std::vector<Fault> find_deadlock(const Schedule& schedule, Transport transport) {
  return Progress(schedule, transport).run();
}

std::vector<Fault> find_order_faults(const Schedule& schedule) {
  const std::vector<int> rank_of = ranks_of_stages(schedule);
  using Pair = std::pair<int, int>;
  std::map<Pair, std::vector<Action>> sent;
  std::map<Pair, size_t> received;
  const std::vector<PlacedAction> actions = placed_actions(schedule);
  for (const PlacedAction& placed : actions) {
    if (!is_send(placed.action.kind)) continue;
    const Action other = other_end(placed.action);
    sent[{placed.rank, rank_of[static_cast<size_t>(other.stage)]}].push_back(other);
  }
  std::vector<Fault> faults;
  std::set<Pair> named;
  for (const PlacedAction& placed : actions) {
    if (!is_recv(placed.action.kind)) continue;
    const int peer = rank_of[static_cast<size_t>(other_end(placed.action).stage)];
    const Pair pair{peer, placed.rank};
    const Action expected = sent[pair][received[pair]++];
    if (expected == placed.action || !named.insert(pair).second) continue;
    faults.push_back({placed.rank, placed.position, to_string(placed.action),
                      fmt::format("rank {} sends {} first; receives must be posted in the order of "
                                  "the sends where messages have no tag",
                                  peer, to_string(other_end(expected)))});
  }
  return faults;
}

std::vector<Fault> find_memory_faults(const Schedule& schedule, const std::vector<int>& max_live) {
  std::vector<Fault> faults;
  std::vector<int> live(schedule.rows.size());
  std::set<int> named;
  for (const PlacedAction& placed : placed_actions(schedule)) {
    const auto rank = static_cast<size_t>(placed.rank);
    if (rank >= max_live.size()) continue;
    if (ends_microbatch(placed.action.kind)) --live[rank];
    if (placed.action.kind != ActionKind::kForward) continue;
    if (++live[rank] <= max_live[rank] || !named.insert(placed.rank).second) continue;
    faults.push_back(
        {placed.rank, placed.position, to_string(placed.action),
         fmt::format("at most {} live microbatches; it makes {}", max_live[rank], live[rank])});
  }
  return faults;
}
}  // namespace muster::pipeline::internal
