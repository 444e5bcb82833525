#pragma once
/// Replies that wait to be sent on one connection. Values are held, not copied.

#include <cstdint>
#include <list>
#include <string>
#include <string_view>

#include "core/base/result.h"
#include "dist/store/internal/key_table.h"

namespace muster::internal {

class OutQueue {
 public:
  /// Adds bytes; small ones share a segment.
  void add(std::string_view bytes);
  /// Adds a length and the bytes of a value.
  void add_value(const SharedBytes& value);

  [[nodiscard]] bool empty() const noexcept { return pending_nbytes_ == 0; }
  [[nodiscard]] int64_t pending_nbytes() const noexcept { return pending_nbytes_; }

  /// The part of them that only this queue holds.
  [[nodiscard]] int64_t own_nbytes() const noexcept { return own_nbytes_; }

  /// Sends what the socket takes now. @error kPeerLost the connection is broken
  Result<void> flush(int fd);

 private:
  struct Segment {
    std::string own;
    SharedBytes value;  // when set, `own` is empty
    [[nodiscard]] std::string_view bytes() const { return value ? value->bytes() : own; }
  };

  void drop(size_t nbytes);

  std::list<Segment> segments_;  // an empty list owns no memory: idle connections are cheap
  size_t first_offset_ = 0;      // bytes of the first segment that are sent
  int64_t pending_nbytes_ = 0;
  int64_t own_nbytes_ = 0;
};

}  // namespace muster::internal
