// The files of a run that hold one JSON object a line, and incident records.
#include <nlohmann/json.hpp>

#include "core/base/json_lines.h"
#include "core/base/text.h"
#include "launcher/report/run_folder.h"

namespace muster {
namespace {
using Json = nlohmann::json;

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
  std::string text = fmt::format("rank {}: ", int_field(json, "rank").value_or(-1));
  const std::string signal = text_field(json, "signal");
  if (!signal.empty()) {
    text += signal;
  } else {
    text += fmt::format("exit {}", int_field(json, "status").value_or(-1));
  }
  text += fmt::format(" ({})", text_field(json, "class"));
  const std::string told = text_field(json, "told");
  if (!told.empty()) text += fmt::format(", told {}", told);
  return text;
}
}  // namespace

int64_t read_metric_lines(std::string_view text, MetricTable& into) {
  return for_each_line(text, [&](std::string_view line) {
    const std::optional<Json> json = parse_json_object(line);
    if (!json) return false;
    const std::optional<int64_t> step = int_field(*json, "step");
    if (!step) return false;
    const size_t row = into.rows();
    into.step.push_back(*step);
    into.attempt.push_back(int_field(*json, "attempt").value_or(0));
    into.generation.push_back(int_field(*json, "generation"));
    into.time_ns.push_back(int_field(*json, "t_ns"));
    into.loss_hex.push_back(text_field(*json, "loss_hex"));
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
    const std::optional<Json> json = parse_json_object(line);
    if (!json) return false;
    RunEvent event;
    event.event = text_field(*json, "event");
    if (event.event.empty()) return false;
    event.attempt = int_field(*json, "attempt").value_or(0);
    event.time_ns = int_field(*json, "t_ns");
    event.step = int_field(*json, "step");
    if (!event.step) event.step = int_field(*json, "from_step");
    if (!event.step) event.step = step_of_checkpoint_name(text_field(*json, "name"));
    event.detail = text_field(*json, "reason");
    if (event.detail.empty()) event.detail = text_field(*json, "digest");
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
    const std::optional<Json> json = parse_json_object(line);
    if (!json) return false;
    AgentRecord record;
    record.event = text_field(*json, "event");
    if (record.event.empty()) return false;
    if (record.event == "attempt_start") attempt = int_field(*json, "attempt").value_or(attempt);
    record.attempt = attempt;
    record.time_ns = int_field(*json, "t_ns").value_or(0);
    if (record.event == "attempt_start") record.generation = int_field(*json, "generation");
    if (record.event == "worker_exit") {
      record.text = how_it_exited(*json);
    } else if (record.event == "decision") {
      record.text = text_field(*json, "reason");
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
  const std::optional<Json> json = parse_json_object(text);
  record.text = std::move(text);
  record.is_damaged = !json.has_value();
  if (!json) return record;
  record.attempt = int_field(*json, "attempt").value_or(0);
  record.generation = int_field(*json, "generation");
  record.world_size = int_field(*json, "world_size");
  const auto decision = json->find("decision");
  if (decision != json->end() && decision->is_object())
    record.reason = text_field(*decision, "reason");
  return record;
}
}  // namespace muster
