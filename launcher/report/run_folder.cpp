#include "launcher/report/run_folder.h"

#include <algorithm>
#include <charconv>
#include <nlohmann/json.hpp>

#include "core/base/file_system.h"
#include "core/base/text.h"
#include "launcher/report/rank_logs.h"

namespace muster {
namespace {
constexpr int64_t kTailNbytes = 16384;
constexpr size_t kTailLines = 30;
constexpr size_t kTailLineLength = 500;
constexpr size_t kMaxTails = 64;

// The number in "attempt_3" after "attempt_", or in "incident-0.json".
std::optional<int64_t> number_in(std::string_view name, std::string_view prefix,
                                 std::string_view suffix = "") {
  if (!name.starts_with(prefix) || !name.ends_with(suffix)) return std::nullopt;
  if (name.size() <= prefix.size() + suffix.size()) return std::nullopt;
  name.remove_prefix(prefix.size());
  name.remove_suffix(suffix.size());
  int64_t number = 0;
  const auto [rest, status] = std::from_chars(name.data(), name.data() + name.size(), number);
  if (status != std::errc() || rest != name.data() + name.size()) return std::nullopt;
  return number;
}

// The numbers of all names in a folder that have this form, ascending; none when it is missing.
std::vector<int64_t> numbers_in(const std::string& directory, std::string_view prefix,
                                std::string_view suffix = "") {
  std::vector<int64_t> numbers;
  const Result<std::vector<std::string>> names = real_file_system().list(directory);
  if (!names.ok()) return numbers;
  for (const std::string& name : *names) {
    if (const auto number = number_in(name, prefix, suffix)) numbers.push_back(*number);
  }
  std::sort(numbers.begin(), numbers.end());
  return numbers;
}

bool exists(const std::string& path) {
  const Result<FileInfo> info = real_file_system().info(path);
  return info.ok() && info->exists;
}

// The text of a file, "" when there is none.
Result<std::string> text_or_nothing(const std::string& path) {
  if (!exists(path)) return std::string();
  return read_text(real_file_system(), path);
}

void count_damage(RunFolder& run, const std::string& file, int64_t lines) {
  if (lines > 0) run.damaged.push_back({file, lines});
}

void read_recipe(RunFolder& run, std::string text) {
  run.recipe_text = std::move(text);
  if (run.recipe_text.empty()) return;
  Result<Recipe> recipe = parse_recipe(run.recipe_text, "recipe.resolved.yaml");
  if (recipe.ok()) {
    run.recipe = std::move(*recipe);
  } else {
    run.recipe_error = recipe.error().what();
  }
}

// Adds the ranks that another node has recorded of the same generation.
void add_ranks_of_node(const std::string& text, std::vector<IncidentRecord>& incidents) {
  const auto added = nlohmann::ordered_json::parse(text, nullptr, /*allow_exceptions=*/false);
  if (!added.is_object() || !added.contains("ranks") || !added["ranks"].is_array()) return;
  for (IncidentRecord& incident : incidents) {
    auto whole = nlohmann::ordered_json::parse(incident.text, nullptr, /*allow_exceptions=*/false);
    if (!whole.is_object() || !whole.contains("generation") || !whole.contains("ranks") ||
        !whole["ranks"].is_array() || whole["generation"] != added.value("generation", -1)) {
      continue;
    }
    for (const auto& rank : added["ranks"]) whole["ranks"].push_back(rank);
    incident.text =
        whole.dump(2, ' ', false, nlohmann::ordered_json::error_handler_t::replace) + "\n";
  }
}

Result<void> read_incidents(RunFolder& run) {
  for (const int64_t number : numbers_in(run.path, "incident-", ".json")) {
    const std::string file = fmt::format("incident-{}.json", number);
    run.incidents.push_back(
        read_incident(file, MUSTER_TRY(text_or_nothing(path_join(run.path, file)))));
    count_damage(run, file, run.incidents.back().is_damaged ? 1 : 0);
  }
  for (const std::string& name : MUSTER_TRY(real_file_system().list(run.path))) {
    if (!name.starts_with("incident-generation") || !name.ends_with(".json")) continue;
    add_ranks_of_node(MUSTER_TRY(text_or_nothing(path_join(run.path, name))), run.incidents);
  }
  return {};
}

// Committed checkpoints, and the number of ranks that wrote the newest one.
void read_checkpoints(RunFolder& run) {
  std::string directory = path_join(run.path, "checkpoints");
  if (run.recipe && !run.recipe->checkpoint.dir.empty()) directory = run.recipe->checkpoint_dir();
  const Result<std::vector<std::string>> names = real_file_system().list(directory);
  if (!names.ok()) return;
  for (const std::string& name : *names) {  // sorted: zero-padded steps ascend
    const auto step = number_in(name, "step-");
    const std::string manifest = path_join(path_join(directory, name), "manifest.json");
    if (!step || !exists(manifest)) continue;
    run.checkpoints_on_disk.push_back(*step);
    const Result<std::string> text = read_text(real_file_system(), manifest);
    if (!text.ok()) continue;
    const auto json = nlohmann::json::parse(*text, nullptr, /*allow_exceptions=*/false);
    if (!json.is_object() || !json.contains("world_size")) continue;
    if (!json["world_size"].is_number_integer()) continue;
    run.world_size = json["world_size"].get<int64_t>();
    run.world_size_source = path_join(name, "manifest.json");
  }
}

LogTail read_tail(const std::string& path, int64_t nbytes) {
  LogTail tail;
  const int64_t wanted = std::min(nbytes, kTailNbytes);
  std::string text(static_cast<size_t>(wanted), '\0');
  const std::span<char> chars(text.data(), text.size());
  const Result<void> read =
      real_file_system().read_at(path, nbytes - wanted, std::as_writable_bytes(chars));
  if (!read.ok()) return tail;
  if (!text.empty() && text.back() == '\n') text.pop_back();
  std::vector<std::string> lines = split(text, '\n');
  tail.is_cut = nbytes > wanted;
  if (tail.is_cut) lines.erase(lines.begin());  // it may be half a line
  if (lines.size() > kTailLines) {
    lines.erase(lines.begin(), lines.end() - static_cast<int64_t>(kTailLines));
    tail.is_cut = true;
  }
  for (std::string& line : lines) {
    if (line.size() > kTailLineLength) line = line.substr(0, kTailLineLength) + " ...";
  }
  tail.lines = std::move(lines);
  return tail;
}

void read_logs(RunFolder& run) {
  const std::vector<RankLogs> ranks = find_rank_logs(run.path);
  for (const RankLogs& rank : ranks) {
    for (const std::string stream : {"stdout", "stderr"}) {
      const std::string path = path_join(rank.folder, stream + ".log");
      const Result<FileInfo> info = real_file_system().info(path);
      if (!info.ok() || info->nbytes == 0 || run.logs.size() == kMaxTails) continue;
      LogTail tail = read_tail(path, info->nbytes);
      tail.attempt = rank.attempt;
      tail.global_rank = rank.global_rank;
      tail.stream = stream;
      run.logs.push_back(std::move(tail));
    }
  }
  if (!run.world_size && !ranks.empty()) {
    run.world_size = static_cast<int64_t>(ranks.size());
    run.world_size_source = fmt::format("logs/attempt_{}", ranks.front().attempt);
  }
}

void read_world_size_of_incidents(RunFolder& run) {
  if (run.world_size) return;
  for (const IncidentRecord& incident : run.incidents) {  // the newest is the last
    if (!incident.world_size) continue;
    run.world_size = incident.world_size;
    run.world_size_source = incident.file;
  }
}

std::string find_agent_events(const std::string& directory, const std::string& asked) {
  if (!asked.empty()) return asked;
  std::string beside = directory;
  while (beside.size() > 1 && beside.back() == '/') beside.pop_back();
  for (std::string path :
       {path_join(directory, "agent_events.jsonl"), beside + ".agent_events.jsonl"}) {
    if (exists(path)) return path;
  }
  return "";
}
}  // namespace

Result<RunFolder> read_run_folder(const std::string& directory, const std::string& agent_events) {
  const FileInfo info = MUSTER_TRY(real_file_system().info(directory));
  if (!info.exists || !info.is_directory) {
    return make_error(ErrorCode::kNotFound, "report: {} must be the folder of a run", directory);
  }
  RunFolder run;
  run.path = directory;
  const std::string metrics = MUSTER_TRY(text_or_nothing(path_join(directory, "metrics.jsonl")));
  const std::string events = MUSTER_TRY(text_or_nothing(path_join(directory, "events.jsonl")));
  read_recipe(run, MUSTER_TRY(text_or_nothing(path_join(directory, "recipe.resolved.yaml"))));
  count_damage(run, "metrics.jsonl", read_metric_lines(metrics, run.metrics));
  count_damage(run, "events.jsonl", read_event_lines(events, run.events));
  MUSTER_TRY(read_incidents(run));
  if (metrics.empty() && events.empty() && run.recipe_text.empty() && run.incidents.empty()) {
    return make_error(
        ErrorCode::kNotFound,
        "report: {} must hold metrics.jsonl, events.jsonl, recipe.resolved.yaml or an "
        "incident record; got none of them",
        directory);
  }
  read_checkpoints(run);
  read_world_size_of_incidents(run);
  read_logs(run);
  const std::string agent_path = find_agent_events(directory, agent_events);
  if (!agent_path.empty()) {
    const std::string text = MUSTER_TRY(read_text(real_file_system(), agent_path));
    count_damage(run, agent_path, read_agent_lines(text, run.agent_records));
  }
  return run;
}
}  // namespace muster
