#pragma once
/// Connections that have not proved yet who they are: bounded in number and in time.
///
/// Whoever comes gets in, and the oldest goes when there are too many: it has had the longest time
/// to prove itself, so a crowd that says nothing keeps nobody out. Holds them and names those that
/// must go; closing and reporting is the owner's. No sockets here, and no clock.

#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <utility>

#include "core/base/time.h"

namespace muster::net {

/// `T` is one connection.
template <typename T>
class Strangers {
 public:
  Strangers(size_t max_count, Duration limit) : max_count_(max_count), limit_(limit) {}

  /// Takes one in; ids must grow. The oldest comes out when there are too many then.
  [[nodiscard]] std::optional<T> add(uint64_t id, T stranger, TimePoint now) {
    entries_.emplace_hint(entries_.end(), id, Entry{now, std::move(stranger)});
    return entries_.size() > max_count_ ? take_oldest() : std::nullopt;
  }

  /// Null when it is not here, or not any more.
  [[nodiscard]] T* find(uint64_t id) {
    const auto found = entries_.find(id);
    return found == entries_.end() ? nullptr : &found->second.stranger;
  }

  /// Lets one go that has proved itself, or has failed to.
  [[nodiscard]] std::optional<T> take(uint64_t id) { return take_at(entries_.find(id)); }
  [[nodiscard]] std::optional<T> take_oldest() { return take_at(entries_.begin()); }
  /// One whose time is over; call it until there is none.
  [[nodiscard]] std::optional<T> take_late(TimePoint now) {
    const std::optional<TimePoint> first = next_limit();
    return first && *first <= now ? take_oldest() : std::nullopt;
  }

  /// When take_late() has something next.
  [[nodiscard]] std::optional<TimePoint> next_limit() const {
    if (entries_.empty()) return std::nullopt;
    return entries_.begin()->second.came_at + limit_;
  }
  [[nodiscard]] size_t size() const noexcept { return entries_.size(); }
  [[nodiscard]] Duration limit() const noexcept { return limit_; }

 private:
  struct Entry {
    TimePoint came_at;
    T stranger;
  };
  using Entries = std::map<uint64_t, Entry>;  // in the order of their coming

  std::optional<T> take_at(typename Entries::iterator at) {
    if (at == entries_.end()) return std::nullopt;
    std::optional<T> taken(std::move(at->second.stranger));
    entries_.erase(at);
    return taken;
  }

  const size_t max_count_;
  const Duration limit_;
  Entries entries_;
};

}  // namespace muster::net
