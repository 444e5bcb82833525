// The JSON that a report shows.
#include <nlohmann/json.hpp>

#include "launcher/report/page.h"
#include "launcher/report/pipeline_drawing.h"
#include "launcher/report/timeline.h"

namespace muster {
namespace {
using OrderedJson = nlohmann::ordered_json;

template <typename T>
OrderedJson optional_json(const std::optional<T>& value) {
  return value ? OrderedJson(*value) : OrderedJson(nullptr);
}

template <typename T>
OrderedJson optionals_json(const std::vector<std::optional<T>>& values) {
  OrderedJson json = OrderedJson::array();
  for (const std::optional<T>& value : values) json.push_back(optional_json(value));
  return json;
}

OrderedJson metrics_json(const MetricTable& metrics, const Timeline& timeline) {
  OrderedJson json;
  json["step"] = metrics.step;
  json["attempt"] = metrics.attempt;
  json["generation"] = optionals_json(metrics.generation);
  json["t_ns"] = optionals_json(metrics.time_ns);
  json["seconds"] = optionals_json(timeline.seconds);
  json["loss_hex"] = metrics.loss_hex;
  json["columns"] = OrderedJson::object();
  for (const auto& [name, values] : metrics.columns) json["columns"][name] = values;
  return json;
}

OrderedJson attempts_json(const std::vector<Attempt>& attempts) {
  OrderedJson json = OrderedJson::array();
  for (const Attempt& attempt : attempts) {
    json.push_back({{"attempt", attempt.attempt},
                    {"generation", optional_json(attempt.generation)},
                    {"first_row", optional_json(attempt.first_row)},
                    {"last_row", optional_json(attempt.last_row)},
                    {"ready_ns", optional_json(attempt.ready_ns)},
                    {"resumed_from", optional_json(attempt.resumed_from)},
                    {"finished", attempt.is_finished},
                    {"ended", attempt.ended},
                    {"recovery_s", optional_json(attempt.recovery_s)}});
  }
  return json;
}

OrderedJson events_json(const RunFolder& run) {
  OrderedJson json = OrderedJson::array();
  for (const RunEvent& event : run.events) {
    json.push_back({{"event", event.event},
                    {"attempt", event.attempt},
                    {"step", optional_json(event.step)},
                    {"t_ns", optional_json(event.time_ns)},
                    {"detail", event.detail}});
  }
  return json;
}

OrderedJson incidents_json(const RunFolder& run) {
  OrderedJson json = OrderedJson::array();
  for (const IncidentRecord& incident : run.incidents) {
    OrderedJson record = OrderedJson::parse(incident.text, nullptr, /*allow_exceptions=*/false);
    if (incident.is_damaged) record = incident.text;
    json.push_back({{"file", incident.file}, {"record", std::move(record)}});
  }
  return json;
}

OrderedJson agent_json(const RunFolder& run) {
  OrderedJson json = OrderedJson::array();
  for (const AgentRecord& record : run.agent_records) {
    json.push_back({{"event", record.event},
                    {"attempt", record.attempt},
                    {"t_ns", record.time_ns},
                    {"text", record.text}});
  }
  return json;
}

OrderedJson layout_json(const RunFolder& run) {
  OrderedJson axes = OrderedJson::array();
  for (const MeshAxis& axis : mesh_axes(run)) {
    axes.push_back({{"name", axis.name}, {"size", axis.size}});
  }
  return {{"axes", std::move(axes)},
          {"world_size", optional_json(run.world_size)},
          {"source", run.world_size_source}};
}

OrderedJson pipeline_json(const RunFolder& run) {
  const std::optional<PipelineDrawing> drawing = draw_pipeline(run);
  if (!drawing) return nullptr;
  return {{"title", drawing->title}, {"drawing", drawing->drawing}};
}

OrderedJson logs_json(const RunFolder& run) {
  OrderedJson json = OrderedJson::array();
  for (const LogTail& tail : run.logs) {
    json.push_back({{"attempt", tail.attempt},
                    {"rank", tail.global_rank},
                    {"stream", tail.stream},
                    {"lines", tail.lines},
                    {"cut", tail.is_cut}});
  }
  return json;
}

// Inside a script element only "</script" and "<!--" matter; without '<' there is neither.
std::string without_markup(const std::string& json) {
  std::string text;
  text.reserve(json.size());
  for (const char c : json) {
    switch (c) {
      case '<':
        text += "\\u003c";
        break;
      case '>':
        text += "\\u003e";
        break;
      case '&':
        text += "\\u0026";
        break;
      default:
        text += c;
    }
  }
  return text;
}
}  // namespace

std::string report_data(const RunFolder& run) {
  const Timeline timeline = make_timeline(run);
  OrderedJson json;
  json["format"] = 1;
  json["name"] = run.recipe ? run.recipe->run.name : run.path;
  json["folder"] = run.path;
  json["planned_steps"] = run.recipe ? OrderedJson(run.recipe->train.steps) : OrderedJson(nullptr);
  json["finished"] = !timeline.attempts.empty() && timeline.attempts.back().is_finished;
  json["clock_restarts"] = timeline.clock_restarts;
  json["metrics"] = metrics_json(run.metrics, timeline);
  json["attempts"] = attempts_json(timeline.attempts);
  json["events"] = events_json(run);
  json["agent"] = agent_json(run);
  json["incidents"] = incidents_json(run);
  json["layout"] = layout_json(run);
  json["pipeline"] = pipeline_json(run);
  json["checkpoints_on_disk"] = run.checkpoints_on_disk;
  json["logs"] = logs_json(run);
  json["recipe"] = run.recipe_text;
  json["recipe_error"] = run.recipe_error;
  json["damaged"] = OrderedJson::array();
  for (const DamagedFile& file : run.damaged) {
    json["damaged"].push_back({{"file", file.file}, {"lines", file.lines}});
  }
  return without_markup(
      json.dump(-1, ' ', /*ensure_ascii=*/true, OrderedJson::error_handler_t::replace));
}
}  // namespace muster
