#include "dist/net/reject_log.h"

#include <fmt/format.h>

#include "core/base/log.h"

namespace muster::net {
namespace {
constexpr Duration kInterval = 1min;
constexpr size_t kMaxSeen = 1024;

void log_warning(const std::string& text) { MUSTER_LOG(kWarn, "{}", text); }
}  // namespace

RejectLog::RejectLog(std::string subject, std::function<void(const std::string&)> report)
    : subject_(std::move(subject)), report_(report ? std::move(report) : log_warning) {}

void RejectLog::add(const std::string& peer, const std::string& peer_address, int kind,
                    const std::string& reason, TimePoint now) {
  const auto key = std::make_pair(peer_address, kind);
  const auto found = seen_.find(key);
  if (found != seen_.end() && now - found->second.reported_at < kInterval) {
    ++found->second.num_suppressed;
    return;
  }
  std::string text = fmt::format("{}: refused {}: {}", subject_, peer, reason);
  if (found != seen_.end() && found->second.num_suppressed > 0) {
    text += fmt::format(" (and {} like it before)", found->second.num_suppressed);
  }
  if (seen_.size() >= kMaxSeen) {
    std::erase_if(seen_,
                  [&](const auto& entry) { return now - entry.second.reported_at >= kInterval; });
    if (seen_.size() >= kMaxSeen) return;  // a flood from many addresses: enough was said
  }
  seen_[key] = {.reported_at = now, .num_suppressed = 0};
  report_(text);
}

}  // namespace muster::net
