#pragma once
/// Reports refused connections without flooding: once a minute for each address and kind.

#include <functional>
#include <map>
#include <string>
#include <utility>

#include "core/base/time.h"
#include "dist/store/internal/server_connection.h"

namespace muster::internal {

class RejectLog {
 public:
  /// An empty `report` logs a warning.
  explicit RejectLog(std::function<void(const std::string&)> report);
  void add(const std::string& peer, const std::string& peer_address, const Rejection& rejection,
           TimePoint now);

 private:
  struct Seen {
    TimePoint reported_at;
    int64_t num_suppressed = 0;
  };
  const std::function<void(const std::string&)> report_;
  std::map<std::pair<std::string, RejectKind>, Seen> seen_;  // bounded
};

}  // namespace muster::internal
