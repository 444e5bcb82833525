// The files of a run that hold one JSON object a line, and incident records.
#include <charconv>
#include <functional>
#include <nlohmann/json.hpp>

#include "core/base/text.h"
#include "launcher/report/run_folder.h"

namespace muster {
namespace {
using Json = nlohmann::json;

std::optional<Json> parse_object(std::string_view line) {
  Json json = Json::parse(line, nullptr, /*allow_exceptions=*/false);
  if (json.is_discarded() || !json.is_object()) return std::nullopt;
  return json;
}

std::optional<int64_t> int_of(const Json& json, const char* key) {
  const auto found = json.find(key);
  if (found == json.end() || !found->is_number_integer()) return std::nullopt;
  return found->get<int64_t>();
}

std::string text_of(const Json& json, const char* key) {
  const auto found = json.find(key);
  return found != json.end() && found->is_string() ? found->get<std::string>() : std::string();
}

// The step of "step-00000020".
std::optional<int64_t> step_of_name(std::string_view name) {
  static constexpr std::string_view kPrefix = "step-";
  if (!name.starts_with(kPrefix)) return std::nullopt;
  name.remove_prefix(kPrefix.size());
  int64_t step = 0;
  const auto [rest, status] = std::from_chars(name.data(), name.data() + name.size(), step);
  if (status != std::errc() || rest != name.data() + name.size()) return std::nullopt;
  return step;
}

// Calls `read` for each line that is not blank; it returns whether the line was whole.
int64_t for_each_line(std::string_view text, const std::function<bool(std::string_view)>& read) {
  int64_t damaged = 0;
  for (size_t at = 0; at < text.size();) {
    const size_t end = std::min(text.find('\n', at), text.size());
    const std::string_view line = text.substr(at, end - at);
    if (!trim(line).empty() && !read(line)) ++damaged;
    at = end + 1;
  }
  return damaged;
}

// The fields that have no place of their own, as JSON without braces.
std::string other_fields(const Json& json, std::initializer_list<std::string_view> known) {
  std::string text;
  for (const auto& [key, value] : json.items()) {
    if (std::find(known.begin(), known.end(), key) != known.end()) continue;
    if (!text.empty()) text += ", ";
    text += key + ": " + value.dump(-1, ' ', false, Json::error_handler_t::replace);
  }
  return text;
}

std::string how_it_exited(const Json& json) {
  std::string text = fmt::format("rank {}: ", int_of(json, "rank").value_or(-1));
  const std::string signal = text_of(json, "signal");
  if (!signal.empty()) {
    text += signal;
  } else {
    text += fmt::format("exit {}", int_of(json, "status").value_or(-1));
  }
  text += fmt::format(" ({})", text_of(json, "class"));
  const std::string told = text_of(json, "told");
  if (!told.empty()) text += fmt::format(", told {}", told);
  return text;
}
}  // namespace

int64_t read_metric_lines(std::string_view text, MetricTable& into) {
  return for_each_line(text, [&](std::string_view line) {
    const std::optional<Json> json = parse_object(line);
    if (!json) return false;
    const std::optional<int64_t> step = int_of(*json, "step");
    if (!step) return false;
    const size_t row = into.rows();
    into.step.push_back(*step);
    into.attempt.push_back(int_of(*json, "attempt").value_or(0));
    into.generation.push_back(int_of(*json, "generation"));
    into.time_ns.push_back(int_of(*json, "t_ns"));
    into.loss_hex.push_back(text_of(*json, "loss_hex"));
    for (const auto& [key, value] : json->items()) {
      if (key == "step" || key == "attempt" || key == "generation" || key == "t_ns") continue;
      if (!value.is_number()) continue;
      std::vector<double>& column = into.columns[key];
      column.resize(row, MetricTable::kAbsent);
      column.push_back(value.get<double>());
    }
    for (auto& [key, column] : into.columns) column.resize(row + 1, MetricTable::kAbsent);
    return true;
  });
}

int64_t read_event_lines(std::string_view text, std::vector<RunEvent>& into) {
  return for_each_line(text, [&](std::string_view line) {
    const std::optional<Json> json = parse_object(line);
    if (!json) return false;
    RunEvent event;
    event.event = text_of(*json, "event");
    if (event.event.empty()) return false;
    event.attempt = int_of(*json, "attempt").value_or(0);
    event.time_ns = int_of(*json, "t_ns");
    event.step = int_of(*json, "step");
    if (!event.step) event.step = int_of(*json, "from_step");
    if (!event.step) event.step = step_of_name(text_of(*json, "name"));
    event.detail = text_of(*json, "reason");
    if (event.detail.empty()) event.detail = text_of(*json, "digest");
    if (event.detail.empty()) {
      event.detail = other_fields(
          *json, {"event", "attempt", "t_ns", "step", "from_step", "name", "reason", "digest"});
    }
    into.push_back(std::move(event));
    return true;
  });
}

int64_t read_agent_lines(std::string_view text, std::vector<AgentRecord>& into) {
  int64_t attempt = 0;
  return for_each_line(text, [&](std::string_view line) {
    const std::optional<Json> json = parse_object(line);
    if (!json) return false;
    AgentRecord record;
    record.event = text_of(*json, "event");
    if (record.event.empty()) return false;
    if (record.event == "attempt_start") attempt = int_of(*json, "attempt").value_or(attempt);
    record.attempt = attempt;
    record.time_ns = int_of(*json, "t_ns").value_or(0);
    if (record.event == "worker_exit") {
      record.text = how_it_exited(*json);
    } else if (record.event == "decision") {
      record.text = text_of(*json, "reason");
    } else {
      record.text = other_fields(*json, {"event", "t_ns"});
    }
    into.push_back(std::move(record));
    return true;
  });
}

IncidentRecord read_incident(const std::string& file, std::string text) {
  IncidentRecord record;
  record.file = file;
  const std::optional<Json> json = parse_object(text);
  record.text = std::move(text);
  record.is_damaged = !json.has_value();
  if (!json) return record;
  record.attempt = int_of(*json, "attempt").value_or(0);
  record.generation = int_of(*json, "generation");
  record.world_size = int_of(*json, "world_size");
  const auto decision = json->find("decision");
  if (decision != json->end() && decision->is_object())
    record.reason = text_of(*decision, "reason");
  return record;
}
}  // namespace muster
