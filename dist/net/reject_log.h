#pragma once
/// Reports refused connections without flooding: once a minute for each address and kind.

#include <functional>
#include <map>
#include <string>
#include <utility>

#include "core/base/time.h"

namespace muster::net {

class RejectLog {
 public:
  /// `subject` begins each line: "tcp store". An empty `report` logs a warning.
  RejectLog(std::string subject, std::function<void(const std::string&)> report);
  /// `kind` groups reasons; a peer is reported once for each.
  void add(const std::string& peer, const std::string& peer_address, int kind,
           const std::string& reason, TimePoint now);

 private:
  struct Seen {
    TimePoint reported_at;
    int64_t num_suppressed = 0;
  };
  const std::string subject_;
  const std::function<void(const std::string&)> report_;
  std::map<std::pair<std::string, int>, Seen> seen_;  // bounded
};

}  // namespace muster::net
