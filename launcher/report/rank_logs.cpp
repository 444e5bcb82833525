#include "launcher/report/rank_logs.h"

#include <fmt/format.h>
#include <sys/stat.h>

#include <algorithm>
#include <charconv>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <tuple>

#include "core/base/file_system.h"
#include "core/base/json_lines.h"

namespace muster {
namespace {
std::optional<int64_t> number_after(std::string_view name, std::string_view prefix) {
  if (!name.starts_with(prefix) || name.size() == prefix.size()) return std::nullopt;
  name.remove_prefix(prefix.size());
  int64_t number = 0;
  const auto [end, error] = std::from_chars(name.data(), name.data() + name.size(), number);
  if (error != std::errc() || end != name.data() + name.size()) return std::nullopt;
  return number;
}

std::vector<std::string> names_of(const std::string& folder) {
  return real_file_system().list(folder).value_or({});
}

// When something was written below it last, 0 when nothing is there.
int64_t written_ns(const std::string& rank_folder) {
  int64_t newest = 0;
  for (const char* name : {"stdout.log", "stderr.log"}) {
    struct stat info {};
    if (::stat(path_join(rank_folder, name).c_str(), &info) != 0) continue;
    newest = std::max(newest, info.st_mtim.tv_sec * int64_t{1'000'000'000} + info.st_mtim.tv_nsec);
  }
  return newest;
}

// The first global rank of a node, by attempt; the host's events have no name in theirs.
std::map<int64_t, int64_t> first_ranks(const std::string& run_dir, const std::string& node) {
  std::map<int64_t, int64_t> ranks;
  for (const std::string& file :
       {fmt::format("agent_events.{}.jsonl", node), std::string("agent_events.jsonl")}) {
    const Result<std::string> text = read_text(real_file_system(), path_join(run_dir, file));
    if (!text.ok()) continue;
    for_each_line(*text, [&](std::string_view line) {
      const std::optional<nlohmann::json> json = parse_json_object(line);
      if (!json || text_field(*json, "event") != "attempt_start") return json.has_value();
      ranks[int_field(*json, "attempt").value_or(0)] = int_field(*json, "first_rank").value_or(0);
      return true;
    });
    break;
  }
  return ranks;
}

struct Found {
  RankLogs logs;
  int64_t written_ns = 0;
};

void add_attempts(const std::string& base, const std::map<int64_t, int64_t>& first_rank,
                  std::vector<Found>& found) {
  for (const std::string& name : names_of(base)) {
    const std::optional<int64_t> attempt = number_after(name, "attempt_");
    if (!attempt) continue;
    const auto first = first_rank.find(*attempt);
    for (const std::string& local : names_of(path_join(base, name))) {
      const std::optional<int64_t> rank = number_after(local, "");
      if (!rank) continue;
      const std::string folder = path_join(path_join(base, name), local);
      found.push_back({{*attempt, *rank + (first == first_rank.end() ? 0 : first->second), folder},
                       written_ns(folder)});
    }
  }
}
}  // namespace

std::vector<RankLogs> find_rank_logs(const std::string& run_dir) {
  std::vector<Found> found;
  for (const std::string& base : {run_dir, path_join(run_dir, "logs")})
    add_attempts(base, {}, found);
  if (found.empty()) {
    const std::string logs = path_join(run_dir, "logs");
    for (const std::string& node : names_of(logs))
      add_attempts(path_join(logs, node), first_ranks(run_dir, node), found);
  }
  const auto age = [](const Found& one) { return std::tuple(one.written_ns, one.logs.attempt); };
  const auto newest = std::max_element(
      found.begin(), found.end(), [&](const Found& a, const Found& b) { return age(a) < age(b); });
  if (newest == found.end()) return {};
  // An earlier run may have left the same attempt of a node that is gone: the later one counts.
  std::map<int64_t, Found> by_rank;
  for (const Found& one : found) {
    if (one.logs.attempt != newest->logs.attempt) continue;
    const auto [at, is_new] = by_rank.emplace(one.logs.global_rank, one);
    if (!is_new && at->second.written_ns <= one.written_ns) at->second = one;
  }
  std::vector<RankLogs> result;
  for (auto& [rank, one] : by_rank) result.push_back(std::move(one.logs));
  return result;
}
}  // namespace muster
